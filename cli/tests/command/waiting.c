/*
 * What a program of libibverbs does while it waits on a software device: one check for each word on
 * the command line. Ends with status 0 and "well" if all hold.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static volatile sig_atomic_t handled;
static volatile int sleeper;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, strerror(errno)); \
            _exit(1); \
        } \
    } while (0)

static struct ibv_device *device(void)
{
    static struct ibv_device **list;
    if (!list)
        list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    return list[0];
}

/* Whether a function is the preloaded library's. */
static int is_ours(void *function)
{
    Dl_info info;
    return dladdr(function, &info) && strstr(info.dli_fname, "libuverbs_preload");
}

static void handle(int signal)
{
    (void)signal;
    handled++;
}

static void leave(int signal)
{
    (void)signal;
    puts("well");
    exit(0);
}

static void on(int signal, void (*handler)(int), int flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    CHECK(sigaction(signal, &action, NULL) == 0);
}

/* The system call in which a thread sleeps; -1 while it runs. */
static long sleeps_in(int thread)
{
    char path[64];
    long number = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    FILE *file = fopen(path, "r");
    CHECK(file);
    if (fscanf(file, "%ld", &number) != 1)
        number = -1;
    fclose(file);
    return number;
}

static void await_sleep(int thread)
{
    long number;
    while ((number = sleeps_in(thread)) != SYS_ppoll) {
        /* A thread that waits for the device's would be in read(2). */
        CHECK(number != SYS_read);
        sched_yield();
    }
}

static int wait_for_event(void)
{
    struct ibv_cq *queue;
    void *user;
    return ibv_get_cq_event(channel, &queue, &user);
}

/* Signals the main thread again and again while it sleeps. */
static void *send_signals(void *unused)
{
    (void)unused;
    await_sleep(getpid());
    CHECK(syscall(SYS_tgkill, getpid(), getpid(), SIGUSR1) == 0);
    while (!handled)
        sched_yield();
    await_sleep(getpid());
    CHECK(syscall(SYS_tgkill, getpid(), getpid(), SIGCHLD) == 0);
    await_sleep(getpid());
    CHECK(syscall(SYS_tgkill, getpid(), getpid(), SIGUSR2) == 0);
    return NULL;
}

static void check_signals(void)
{
    pthread_t thread;
    on(SIGUSR1, handle, SA_RESTART);
    on(SIGUSR2, handle, 0);
    CHECK(pthread_create(&thread, NULL, send_signals, NULL) == 0);
    CHECK(wait_for_event() == -1 && errno == EINTR);
    CHECK(handled == 2);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void *sleep_for_ever(void *unused)
{
    (void)unused;
    sleeper = syscall(SYS_gettid);
    wait_for_event();
    return NULL;
}

static void check_cancel(void)
{
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, sleep_for_ever, NULL) == 0);
    while (!sleeper)
        sched_yield();
    await_sleep(sleeper);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    /* Its locks are free. */
    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK(pd && ibv_dealloc_pd(pd) == 0);
}

static void check_nonblocking(void)
{
    CHECK(ibv_req_notify_cq(ibv_create_cq(context, 4, NULL, channel, 0), 0) == 0);
    int flags = fcntl(channel->fd, F_GETFL);
    CHECK(fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) == 0);
    CHECK(wait_for_event() == -1 && errno == EAGAIN);
    CHECK(fcntl(channel->fd, F_SETFL, flags) == 0);
}

static struct ibv_cq_ex *extended(struct ibv_context *context, uint64_t flags)
{
    struct ibv_cq_init_attr_ex attributes = { .cqe = 16, .wc_flags = flags };
    return ibv_create_cq_ex(context, &attributes);
}

static void check_tables(void)
{
    struct mlx5dv_context_attr none = { 0 };
    struct ibv_context *direct = mlx5dv_open_device(device(), &none);
    CHECK(direct && is_ours((void *)direct->ops.poll_cq));
    struct ibv_context *imported = ibv_import_device(dup(context->cmd_fd));
    CHECK(imported && is_ours((void *)imported->ops.poll_cq));
    CHECK(is_ours((void *)context->ops.poll_cq));

    uint64_t kinds[] = { 0, IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
    struct ibv_poll_cq_attr attributes = { 0 };
    for (unsigned n = 0; n < sizeof kinds / sizeof *kinds; n++) {
        struct ibv_cq_ex *queue = extended(n & 1 ? direct : context, kinds[n]);
        CHECK(queue && is_ours((void *)queue->start_poll));
        for (int poll = 0; poll < 100; poll++)
            CHECK(ibv_start_poll(queue, &attributes) == ENOENT);
        CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(queue)) == 0);
    }
    struct ibv_cq_init_attr_ex wanted = { .cqe = 16 };
    struct mlx5dv_cq_init_attr of_mlx5 = { 0 };
    struct ibv_cq_ex *queue = mlx5dv_create_cq(direct, &wanted, &of_mlx5);
    CHECK(queue && is_ours((void *)queue->start_poll));
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(queue)) == 0);
    CHECK(ibv_close_device(direct) == 0);
}

/* A handler ends the process while the program polls. */
static void check_exit(void)
{
    struct itimerval soon = { .it_value = { .tv_usec = 20000 } };
    struct ibv_cq *queue = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_wc completion;
    CHECK(queue);
    on(SIGALRM, leave, 0);
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    for (;;)
        CHECK(ibv_poll_cq(queue, 1, &completion) == 0);
}

/* A path to an address that no device has, and to the device's own. */
static void check_neighbour(void)
{
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_ah_attr path = { .is_global = 1, .port_num = 1 };
    path.grh.sgid_index = 3;
    CHECK(pd && ibv_query_gid(context, 1, 3, &path.grh.dgid) == 0);
    CHECK(ibv_create_ah(pd, &path));
    /* Devices choose addresses of 127.18. */
    path.grh.dgid.raw[13] = 77;
    errno = 0;
    CHECK(!ibv_create_ah(pd, &path) && errno == ETIMEDOUT);
}

int main(int count, char **words)
{
    context = ibv_open_device(device());
    CHECK(context);
    channel = ibv_create_comp_channel(context);
    CHECK(channel);
    for (int n = 1; n < count; n++) {
        if (!strcmp(words[n], "signals"))
            check_signals();
        else if (!strcmp(words[n], "cancel"))
            check_cancel();
        else if (!strcmp(words[n], "nonblocking"))
            check_nonblocking();
        else if (!strcmp(words[n], "tables"))
            check_tables();
        else if (!strcmp(words[n], "neighbour"))
            check_neighbour();
        else if (!strcmp(words[n], "exit"))
            check_exit();
        else
            return 2;
    }
    puts("well");
    return 0;
}
