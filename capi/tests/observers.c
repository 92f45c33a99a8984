/* Programs that the library's trace and checks must not disturb: the first argument selects one. */
#include "common.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static volatile pid_t other;

/* Waits until the other thread sleeps in a call, which only this thread can end. */
static void until_it_sleeps(void)
{
	char path[64], text[512], *state = NULL;
	do {
		FILE *file;
		size_t length;
		sched_yield();
		if (!other)
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%d/stat", other);
		file = fopen(path, "r");
		CHECK(file);
		length = fread(text, 1, sizeof text - 1, file);
		text[length] = 0;
		fclose(file);
		state = strrchr(text, ')');
	} while (!other || !state || state[2] != 'S');
}

static void destroy_twice(void)
{
	struct ibv_pd *gone = ibv_alloc_pd(context);
	CHECK(gone && ibv_dealloc_pd(gone) == 0);
	CHECK(ibv_dealloc_pd(gone) == EINVAL);
}

/* Nothing can be written to standard error. */
static void full(void)
{
	int saved = dup(2), disk = open("/dev/full", O_WRONLY);
	CHECK(saved >= 0 && disk >= 0 && dup2(disk, 2) == 2);
	destroy_twice();
	CHECK(!ibv_create_cq(context, -1, NULL, NULL, 0));
	CHECK(close(2) == 0);
	destroy_twice();
	CHECK(dup2(saved, 2) == 2);
}

static void open_and_close(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *opened = ibv_open_device(list[0]);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(opened);
	char text[64];

	CHECK(opened && channel);
	CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_close_device(opened) == 0);
	ibv_read_sysfs_file(list[0]->ibdev_path, "board_id", text, sizeof text);
	ibv_free_device_list(list);
}

static void *cancels_itself(void *unused)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(cq, 8, 0);
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buffer + 64, mr->rkey } }, *bad;

	connect_to_itself(qp);
	CHECK(pthread_cancel(pthread_self()) == 0);
	/* None of these calls is a cancellation point, with or without observers. */
	if (getenv("UVERBS_CHECK"))
		destroy_twice();
	open_and_close();
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0 && wait_for(cq).status == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	other = 1;
	pthread_testcancel();
	return unused;
}

static void cancelled(void)
{
	pthread_t thread;
	void *result;
	other = 0;
	CHECK(pthread_create(&thread, NULL, cancels_itself, NULL) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED && other == 1);
}

static void *complains(void *unused)
{
	other = syscall(SYS_gettid);
	destroy_twice();
	return unused;
}

/* A child is forked while a thread waits until standard error takes its complaint. */
static void forked(void)
{
	int ends[2], saved = dup(2), status, flags;
	char bytes[4096] = { 0 };
	pthread_t thread;
	pid_t child;

	CHECK(saved >= 0 && pipe(ends) == 0 && (flags = fcntl(ends[1], F_GETFL)) >= 0);
	CHECK(fcntl(ends[1], F_SETFL, flags | O_NONBLOCK) == 0);
	while (write(ends[1], bytes, sizeof bytes) > 0)
		;
	CHECK(fcntl(ends[1], F_SETFL, flags) == 0 && dup2(ends[1], 2) == 2);
	other = 0;
	CHECK(pthread_create(&thread, NULL, complains, NULL) == 0);
	until_it_sleeps();
	child = fork();
	if (child == 0) {
		int nothing = open("/dev/null", O_WRONLY);
		alarm(60);
		dup2(nothing, 2);
		ibv_alloc_pd(context);
		ibv_dealloc_pd(pd);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(dup2(saved, 2) == 2 && close(ends[1]) == 0);
	while (read(ends[0], bytes, sizeof bytes) > 0)
		;
	CHECK(pthread_join(thread, NULL) == 0 && close(ends[0]) == 0);
	CHECK(WIFEXITED(status));
}

/* Closes the trace, as daemons close what they did not open, and opens a file that gets its number. */
static void closed(const char *trace)
{
	struct stat wanted, found;
	int number, own;

	destroy_twice();
	CHECK(stat(trace, &wanted) == 0);
	for (number = 3; number < 1024; number++)
		if (fstat(number, &found) == 0 && found.st_dev == wanted.st_dev && found.st_ino == wanted.st_ino)
			break;
	CHECK(number < 1024);
	own = open("own", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	CHECK(own >= 0 && dup2(own, number) == number && chdir("/") == 0);
	CHECK(!ibv_create_cq(context, -1, NULL, NULL, 0));
	CHECK(fstat(number, &found) == 0 && found.st_size == 0);
}

static void *makes_and_destroys(void *unused)
{
	int i;
	for (i = 0; i < 200; i++)
		destroy_twice();
	return unused;
}

static void threads(void)
{
	pthread_t list[8];
	int i;
	for (i = 0; i < 8; i++)
		CHECK(pthread_create(&list[i], NULL, makes_and_destroys, NULL) == 0);
	for (i = 0; i < 8; i++)
		CHECK(pthread_join(list[i], NULL) == 0);
}

/* Files must not become larger: a write beyond that sends SIGXFSZ. */
static void limit_files(rlim_t bytes)
{
	struct rlimit limit = { bytes, RLIM_INFINITY };
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void limited(void)
{
	sigset_t waiting;
	limit_files(4096);
	makes_and_destroys(NULL);
	CHECK(sigpending(&waiting) == 0 && !sigismember(&waiting, SIGXFSZ));
}

/* The memory of a software device is a file, too. */
static void too_small(void)
{
	struct ibv_device **list;
	limit_files(1 << 20);
	list = ibv_get_device_list(NULL);
	CHECK(list && !list[0]);
}

/* The user of a program with more rights than its own names no files and devices by variables. */
static void privileged(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(geteuid() != getuid() && (!list || !list[0] || strncmp(ibv_get_device_name(list[0]), "soft", 4)));
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	/* A wait for ever is a failure. */
	alarm(300);
	if (!strcmp(argv[1], "privileged")) {
		privileged();
		puts("kept");
		return 0;
	}
	if (!strcmp(argv[1], "too_small")) {
		too_small();
		puts("kept");
		return 0;
	}
	open_soft();
	if (!strcmp(argv[1], "limited"))
		limited();
	if (!strcmp(argv[1], "full"))
		full();
	if (!strcmp(argv[1], "cancelled"))
		cancelled();
	if (!strcmp(argv[1], "forked"))
		forked();
	if (!strcmp(argv[1], "closed"))
		closed(argv[2]);
	if (!strcmp(argv[1], "threads"))
		threads();
	close_soft();
	puts("kept");
	return 0;
}
