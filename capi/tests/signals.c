/* Signals while a thread waits for events: handlers with SA_RESTART let it wait on, as they let the read(2) of
 * libibverbs; others end the wait with EINTR. A thread that waits for completions does the device's work, and can
 * be cancelled. Channels count their completion queues. */
#include "common.h"
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static volatile int handled;

static void handler(int signal)
{
	(void)signal;
	__atomic_fetch_add(&handled, 1, __ATOMIC_RELAXED);
}

static void handle(int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
}

struct waiter {
	struct ibv_comp_channel *channel;
	int result, error, ended, thread;
};

static void *wait_for_completion(void *argument)
{
	struct waiter *waiter = argument;
	struct ibv_cq *cq;
	void *cookie;

	__atomic_store_n(&waiter->thread, syscall(SYS_gettid), __ATOMIC_RELEASE);
	waiter->result = ibv_get_cq_event(waiter->channel, &cq, &cookie);
	waiter->error = errno;
	if (waiter->result == 0)
		ibv_ack_cq_events(cq, 1);
	__atomic_store_n(&waiter->ended, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void *wait_for_event(void *argument)
{
	struct waiter *waiter = argument;
	struct ibv_async_event event;

	waiter->result = ibv_get_async_event(context, &event);
	waiter->error = errno;
	__atomic_store_n(&waiter->ended, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Signals the thread until its handler ran `times` more, or the thread ends. Sleeps, so that the thread can wait. */
static void interrupt(pthread_t thread, struct waiter *waiter, int times)
{
	int until = handled + times;
	while (handled < until && !__atomic_load_n(&waiter->ended, __ATOMIC_ACQUIRE)) {
		pthread_kill(thread, SIGUSR1);
		usleep(1000);
	}
}

static void is_interrupted(void *(*body)(void *), struct ibv_comp_channel *channel)
{
	struct waiter waiter = { channel };
	pthread_t thread;

	handle(0);
	CHECK(pthread_create(&thread, NULL, body, &waiter) == 0);
	interrupt(thread, &waiter, 1 << 20);
	CHECK(pthread_join(thread, NULL) == 0 && waiter.result == -1 && waiter.error == EINTR);
}

/* Programs that report their own crash handle these signals, often without SA_RESTART. No wait causes them. */
static void handle_crashes(void)
{
	static const int crashes[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS };
	struct sigaction action = { .sa_handler = _exit };
	unsigned i;

	for (i = 0; i < sizeof crashes / sizeof *crashes; i++)
		CHECK(sigaction(crashes[i], &action, NULL) == 0);
}

static void waits_on(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	struct waiter waiter = { channel };
	pthread_t thread;

	connect_to_itself(qp);
	wr.wr.rdma.remote_addr = (uintptr_t)buffer + 64;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	handle(SA_RESTART);
	handle_crashes();
	CHECK(pthread_create(&thread, NULL, wait_for_completion, &waiter) == 0);
	interrupt(thread, &waiter, 20);
	CHECK(!__atomic_load_n(&waiter.ended, __ATOMIC_ACQUIRE));
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	CHECK(pthread_join(thread, NULL) == 0 && waiter.result == 0);
	CHECK(wait_for(cq).status == IBV_WC_SUCCESS && ibv_destroy_qp(qp) == 0);
}

/* How many files a thread sleeps on; 0 while it runs or sleeps otherwise. */
static unsigned long files_of(int thread)
{
	char path[64];
	long call = -1;
	unsigned long files = 0;
	FILE *file;

	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
	file = fopen(path, "r");
	CHECK(file);
	if (fscanf(file, "%ld %*s %lx", &call, &files) < 2)
		call = -1;
	fclose(file);
#ifdef SYS_poll
	if (call == SYS_poll)
		return files;
#endif
	return call == SYS_ppoll ? files : 0;
}

/* A thread that works for the device sleeps on its channel's file, on one for signals, and on the device's. One
 * that waits for the device's own thread sleeps on one file. */
static void works_for_the_device(struct ibv_comp_channel *channel)
{
	struct waiter waiter = { channel };
	pthread_t thread;
	void *result;
	unsigned long files;
	int id;

	CHECK(pthread_create(&thread, NULL, wait_for_completion, &waiter) == 0);
	while (!(id = __atomic_load_n(&waiter.thread, __ATOMIC_ACQUIRE)))
		sched_yield();
	while ((files = files_of(id)) < 3) {
		CHECK(files != 1);
		sched_yield();
	}
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	/* The device's locks are free. */
	CHECK(ibv_destroy_cq(ibv_create_cq(context, 16, NULL, NULL, 0)) == 0);
}

static struct ibv_send_wr write_here(struct ibv_sge *sge)
{
	struct ibv_send_wr wr = { .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED };

	*sge = (struct ibv_sge){ (uintptr_t)buffer, 8, mr->lkey };
	wr.wr.rdma.remote_addr = (uintptr_t)buffer + 64;
	wr.wr.rdma.rkey = mr->rkey;
	return wr;
}

/* A thread that has not waited before finds no descriptor for its signals, and waits all the same. */
static void waits_without_descriptors(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	struct ibv_sge sge;
	struct ibv_send_wr wr = write_here(&sge), *bad;
	struct waiter waiter = { channel };
	struct rlimit limit, few;
	int files[64], count = 0;
	pthread_t thread;

	connect_to_itself(qp);
	CHECK(ibv_req_notify_cq(cq, 0) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	few = limit;
	few.rlim_cur = 64;
	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
	while ((files[count] = open("/dev/null", O_RDONLY)) >= 0)
		count++;
	CHECK(errno == EMFILE);
	/* A thread that never takes its event would hang here. */
	alarm(120);
	CHECK(pthread_create(&thread, NULL, wait_for_completion, &waiter) == 0);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	CHECK(pthread_join(thread, NULL) == 0 && waiter.result == 0);
	alarm(0);
	while (count > 0)
		close(files[--count]);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK(wait_for(cq).status == IBV_WC_SUCCESS && ibv_destroy_qp(qp) == 0);
}

static volatile int taken;

static void *takes_events(void *channel)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *cookie;

	for (;;) {
		CHECK(ibv_get_cq_event(channel, &cq, &cookie) == 0);
		ibv_ack_cq_events(cq, 1);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		while (ibv_poll_cq(cq, 1, &wc) > 0)
			;
		__atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Events that never stop coming do not keep a thread from being cancelled. */
static void is_cancelled_between_events(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	struct ibv_sge sge;
	struct ibv_send_wr wr = write_here(&sge), *bad;
	struct ibv_wc wc;
	pthread_t thread;
	void *result;
	int cancelled = 0;

	connect_to_itself(qp);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(pthread_create(&thread, NULL, takes_events, channel) == 0);
	alarm(120);
	while (pthread_tryjoin_np(thread, &result) != 0) {
		/* The queue may be full. */
		(void)ibv_post_send(qp, &wr, &bad);
		if (!cancelled && __atomic_load_n(&taken, __ATOMIC_RELAXED) > 20) {
			CHECK(pthread_cancel(thread) == 0);
			cancelled = 1;
		}
		sched_yield();
	}
	alarm(0);
	CHECK(cancelled && result == PTHREAD_CANCELED && ibv_destroy_qp(qp) == 0);
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

/* As in libibverbs, waiting on a descriptor that the program has closed fails, and does not wait for ever. */
static void closed_descriptors(struct ibv_comp_channel *channel)
{
	const int fds[] = { channel->fd, context->async_fd };
	struct ibv_async_event event;
	struct ibv_cq *cq;
	void *cookie;
	int i, kept;

	alarm(120);
	for (i = 0; i < 2; i++) {
		kept = dup(fds[i]);
		CHECK(kept >= 0 && close(fds[i]) == 0);
		errno = 0;
		CHECK((i ? ibv_get_async_event(context, &event) : ibv_get_cq_event(channel, &cq, &cookie)) == -1);
		CHECK(errno == EBADF && dup2(kept, fds[i]) == fds[i] && close(kept) == 0);
	}
	alarm(0);
}

int main(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq, *other;

	open_soft();
	channel = ibv_create_comp_channel(context);
	CHECK(channel && channel->refcnt == 0);
	cq = ibv_create_cq(context, 16, NULL, channel, 0);
	other = ibv_create_cq(context, 16, NULL, channel, 0);
	CHECK(cq && other && channel->refcnt == 2 && ibv_destroy_cq(other) == 0 && channel->refcnt == 1);
	is_interrupted(wait_for_completion, channel);
	is_interrupted(wait_for_event, NULL);
	works_for_the_device(channel);
	waits_on(channel, cq);
	waits_without_descriptors(channel, cq);
	is_cancelled_between_events(channel, cq);
	closed_descriptors(channel);
	CHECK(ibv_destroy_cq(cq) == 0 && channel->refcnt == 0 && ibv_destroy_comp_channel(channel) == 0);
	close_soft();
	puts("kept");
	return 0;
}
