/* What the verbs promise to several threads, and to a child: no call waits for a lock that another thread keeps between two
 * of its own calls, objects stay usable until their events are acknowledged. */
#include "common.h"
#include <malloc.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Bytes of the heap that are in use. musl has no function for it, so the heap is not checked there. */
static size_t used(void)
{
#ifdef __GLIBC__
	return mallinfo2().uordblks;
#else
	return 0;
#endif
}

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

static void *destroys_cq(void *cq)
{
	other = syscall(SYS_gettid);
	return (void *)(intptr_t)ibv_destroy_cq(cq);
}

static void *destroys_srq(void *srq)
{
	other = syscall(SYS_gettid);
	return (void *)(intptr_t)ibv_destroy_srq(srq);
}

/* Posts a write, and waits for its event. */
static void one_event(struct ibv_comp_channel *channel, struct ibv_cq *cq, struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buffer + 64, mr->rkey } }, *bad;
	struct ibv_cq *from;
	void *cookie;
	CHECK(ibv_req_notify_cq(cq, 0) == 0 && ibv_post_send(qp, &wr, &bad) == 0);
	CHECK(ibv_get_cq_event(channel, &from, &cookie) == 0 && from == cq);
}

static void polled_until_acknowledged(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	struct ibv_wc wc;
	pthread_t thread;
	void *result;

	connect_to_itself(qp);
	one_event(channel, cq, qp);
	/* Destroying a queue in use fails at once with EBUSY, whatever its events. */
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(qp) == 0);
	other = 0;
	CHECK(pthread_create(&thread, NULL, destroys_cq, cq) == 0);
	until_it_sleeps();
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0 && ibv_req_notify_cq(cq, 0) == 0);
	ibv_ack_cq_events(cq, 1);
	CHECK(pthread_join(thread, &result) == 0 && result == NULL);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

static void posted_until_acknowledged(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr limit = { .srq_limit = 4 };
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_async_event event;
	pthread_t thread;
	void *result;

	CHECK(srq && ibv_post_srq_recv(srq, &wr, &bad) == 0);
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	other = 0;
	CHECK(pthread_create(&thread, NULL, destroys_srq, srq) == 0);
	until_it_sleeps();
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	ibv_ack_async_event(&event);
	CHECK(pthread_join(thread, &result) == 0 && result == NULL);
}

/* Programs acknowledge in bulk; events that wait take no memory of their own. */
static void many_events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	const int count = 2000;
	int i;
	size_t before = 0;

	connect_to_itself(qp);
	for (i = 0; i < count; i++) {
		if (i == count / 2)
			before = used();
		one_event(channel, cq, qp);
		CHECK(wait_for(cq).status == IBV_WC_SUCCESS);
	}
	CHECK(used() < before + 16 * 1024);
	ibv_ack_cq_events(cq, count);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

static void *queries_and_changes(void *argument)
{
	struct ibv_qp *qp = argument;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	return NULL;
}

/* A thread between start and complete does not block queries and changes of other threads. */
static void no_call_waits_for_posts(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(cq, 4, IBV_QP_EX_WITH_SEND);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	pthread_t thread;

	connect_to_itself(qp);
	ibv_wr_start(ex);
	CHECK(pthread_create(&thread, NULL, queries_and_changes, qp) == 0 && pthread_join(thread, NULL) == 0);
	ibv_wr_abort(ex);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

static pthread_barrier_t barrier;
static struct ibv_qp_ex *kept;
static struct ibv_cq_ex *polled;

static void *keeps_locks(void *unused)
{
	struct ibv_poll_cq_attr attr = { 0 };
	while (ibv_start_poll(polled, &attr) == ENOENT)
		;
	ibv_wr_start(kept);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	ibv_wr_abort(kept);
	ibv_end_poll(polled);
	return unused;
}

/* A child has no thread that would release the locks. */
static void children_wait_for_none(void)
{
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16 };
	struct ibv_cq *cq = ibv_cq_ex_to_cq(polled = ibv_create_cq_ex(context, &cq_attr));
	struct ibv_qp *qp = make_qp(cq, 4, IBV_QP_EX_WITH_SEND);
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buffer + 64, mr->rkey } }, *bad;
	pthread_t thread;
	pid_t child;
	int status;

	connect_to_itself(qp);
	kept = ibv_qp_to_qp_ex(qp);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0 && pthread_barrier_init(&barrier, NULL, 2) == 0);
	CHECK(pthread_create(&thread, NULL, keeps_locks, NULL) == 0);
	pthread_barrier_wait(&barrier);
	child = fork();
	if (child == 0) {
		struct ibv_wc wc;
		alarm(60);
		ibv_post_send(qp, &wr, &bad);
		ibv_poll_cq(cq, 1, &wc);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
	pthread_barrier_wait(&barrier);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(void)
{
	/* A wait for ever is a failure. */
	alarm(300);
	open_soft();
	polled_until_acknowledged();
	posted_until_acknowledged();
	many_events();
	no_call_waits_for_posts();
	children_wait_for_none();
	close_soft();
	puts("kept");
	return 0;
}
