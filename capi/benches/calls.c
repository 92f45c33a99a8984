/* Instructions per verb at the C ABI, on the software device. Under callgrind, which counts between two toggles; one case per
 * run. `calls` lists the cases: number, the instructions per request or completion of Debian 12's libmlx5 on ordinary memory,
 * name. (Of polls of receives with data inside, of full queues but for one SGE, of atomics, invalidations and several buffers,
 * and of receives of two SGEs, on the device that `uverbs run` shows.) All have the loop and the indirect call in them, as case 0
 * alone has.
 * `calls NUMBER time` prints the least time per request or completion of many runs, in nanoseconds. See `compare`.
 * `calls grid` counts requests with inline data of many lengths, and dumps the counts of each point by its name. See `grid`. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <valgrind/callgrind.h>

#define N 64
/* Requests that the narrow queue pair takes. */
#define NARROW 16
#define BATCH 16
#define LIST 32
/* Most bytes of inline data: as many as a copy to the doorbell register takes behind any header but UD's. */
#define MOST 220
#define RECEIVED 512
#define CHECK(what)                                                                                  \
	do {                                                                                         \
		if (!(what)) {                                                                       \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);         \
			exit(1);                                                                     \
		}                                                                                    \
	} while (0)
#define COUNTED(body)                                                                                \
	do {                                                                                         \
		begin();                                                                             \
		CALLGRIND_TOGGLE_COLLECT;                                                            \
		body;                                                                                \
		CALLGRIND_TOGGLE_COLLECT;                                                            \
		end();                                                                               \
	} while (0)

static double begun, least = 1e9;

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

__attribute__((noinline)) static void begin(void)
{
	begun = now();
}

__attribute__((noinline)) static void end(void)
{
	double time = now() - begun;
	least = time < least ? time : least;
}

/* A completion queue, and how many entries of it were polled. */
struct polled {
	struct ibv_cq *cq;
	uint32_t index;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char data[65536];
static struct polled plain, extended;
static struct ibv_qp *qp, *qp_extended, *narrow, *wide, *ud, *narrow_ud, *broken, *inlining, *sharing;
static struct ibv_qp_ex *qx, *narrow_x, *ud_x, *narrow_ud_x, *broken_x;
static struct ibv_ah *ah;
static struct ibv_srq *srq, *inside_srq;
static struct ibv_send_wr sends[N], *bad;
static struct ibv_recv_wr receives[N], *bad_receive;
static struct ibv_sge send_sges[N], receive_sges[N];
static struct ibv_wc wc[N];

static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.max_dest_rd_atomic = 16;
	attr.min_rnr_timer = 1;
	attr.ah_attr.port_num = attr.ah_attr.is_global = attr.ah_attr.grh.hop_limit = 1;
	attr.ah_attr.grh.sgid_index = 3;
	CHECK(!ibv_query_gid(context, 1, 3, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.max_rd_atomic = 16;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct ibv_qp *make_qp(struct ibv_cq *cq, int calls, uint32_t depth, uint32_t sges)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (calls ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.send_ops_flags = calls ? IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND |
			IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV : 0,
		.cap = { .max_send_wr = depth, .max_recv_wr = 512, .max_send_sge = sges, .max_recv_sge = sges > 1 ? 2 : 1,
			.max_inline_data = sges > 1 && depth == 512 ? 0 : MOST },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp);
	connect_to_itself(qp);
	return qp;
}

/* A queue pair whose short messages are in their completions. */
static struct ibv_qp *make_inside(struct ibv_srq *srq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = plain.cq, .recv_cq = plain.cq, .srq = srq, .qp_type = IBV_QPT_RC, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD,
		.cap = { .max_send_wr = 512, .max_recv_wr = srq ? 0 : 512, .max_send_sge = 1, .max_recv_sge = srq ? 0 : 1 },
	};
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, .create_flags = MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE,
	};
	struct ibv_qp *qp = mlx5dv_create_qp(context, &attr, &dv);
	CHECK(qp);
	connect_to_itself(qp);
	return qp;
}

/* A UD queue pair that sends to itself, where nothing is received. */
static struct ibv_qp *make_ud(uint32_t depth)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = plain.cq, .recv_cq = plain.cq, .qp_type = IBV_QPT_UD, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
		.cap = { .max_send_wr = depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = MOST },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
	struct ibv_ah_attr to = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 1, .sgid_index = 3 } };
	struct ibv_qp *ud = ibv_create_qp_ex(context, &init);
	CHECK(ud);
	CHECK(!ibv_modify_qp(ud, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(ud, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(ud, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	CHECK(!ibv_query_gid(context, 1, 3, &to.grh.dgid));
	ah = ibv_create_ah(pd, &to);
	CHECK(ah);
	return ud;
}

static void prepare(enum ibv_wr_opcode opcode, unsigned flags, uint32_t length, int list)
{
	for (int i = 0; i < N; i++) {
		send_sges[i] = (struct ibv_sge){ (uintptr_t)data + 64 * i, length, mr->lkey };
		sends[i] = (struct ibv_send_wr){ .wr_id = i, .opcode = opcode, .send_flags = flags, .sg_list = &send_sges[i],
			.num_sge = 1, .wr.rdma = { (uintptr_t)data + 32768 + 64 * i, mr->rkey } };
		sends[i].next = (i + 1) % list ? &sends[i + 1] : NULL;
	}
}

static void prepare_receives(int list)
{
	for (int i = 0; i < N; i++) {
		receive_sges[i] = (struct ibv_sge){ (uintptr_t)data + RECEIVED * i, RECEIVED, mr->lkey };
		receives[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = &receive_sges[i], .num_sge = 1 };
		receives[i].next = (i + 1) % list ? &receives[i + 1] : NULL;
	}
}

/* Waits until the device has written `count` completions more, without a poll. */
static void settle(struct polled *queue, uint32_t count)
{
	struct mlx5dv_cq dv;
	struct mlx5dv_obj obj = { .cq = { queue->cq, &dv } };
	volatile struct mlx5_cqe64 *last;
	uint32_t index = queue->index + count - 1;
	CHECK(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ));
	last = (volatile struct mlx5_cqe64 *)dv.buf + (index & (dv.cqe_cnt - 1));
	while ((last->op_own >> 4) == MLX5_CQE_INVALID || (last->op_own & 1) != !!(index & dv.cqe_cnt))
		sched_yield();
	queue->index += count;
}

static void drain(int count)
{
	settle(&plain, count);
	while (count) {
		int polled = ibv_poll_cq(plain.cq, count < N ? count : N, wc);
		CHECK(polled >= 0);
		for (int i = 0; i < polled; i++)
			CHECK(wc[i].status == IBV_WC_SUCCESS);
		count -= polled;
	}
}

/* One signaled request retires what went before. */
static void retire(void)
{
	struct ibv_sge sge = { (uintptr_t)data, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)data + 32768, mr->rkey } };
	CHECK(!ibv_post_send(qp, &wr, &bad));
	drain(1);
}

__attribute__((noinline)) static int nothing(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	__asm__ volatile("" ::: "memory");
	return 0;
}

static int (*volatile no_verb)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **) = nothing;

static void empty(void)
{
	COUNTED(for (int i = 0; i < N; i++) if (no_verb(qp, &sends[i], &bad)) abort());
}

static void post(unsigned flags, uint32_t length, int list)
{
	prepare(IBV_WR_RDMA_WRITE, flags, length, list);
	COUNTED(for (int i = 0; i < N; i += list) if (ibv_post_send(qp, &sends[i], &bad)) abort());
	retire();
}

static void inline_16(void) { post(IBV_SEND_INLINE, 16, 1); }
static void inline_64(void) { post(IBV_SEND_INLINE, 64, 1); }
static void one_sge(void) { post(0, 64, 1); }
static void list_of_sges(void) { post(0, 64, LIST); }
static void list_of_inline(void) { post(IBV_SEND_INLINE, 16, LIST); }

/* The last request is signaled, and retires the others. */
static void several_sges(int list)
{
	prepare(IBV_WR_RDMA_WRITE, 0, 64, list);
	for (int i = 0; i < N; i++) {
		sends[i].sg_list = &send_sges[i % (N - 2)];
		sends[i].num_sge = 3;
	}
	sends[N - 1].send_flags = IBV_SEND_SIGNALED;
	COUNTED(for (int i = 0; i < N; i += list) if (ibv_post_send(wide, &sends[i], &bad)) abort());
	drain(1);
}

static void three_sges(void) { several_sges(1); }
static void list_of_three_sges(void) { several_sges(LIST); }

/* Kinds of requests for a queue that is kept full. */
enum kind { ONE_SGE, FOUR_SGES, INLINE_64, DATAGRAM, DATAGRAM_INLINE_64, FETCH_ADD };

/* Posts one request by calls. */
static int call_one(struct ibv_qp_ex *x, enum kind kind, const struct ibv_send_wr *wr)
{
	ibv_wr_start(x);
	x->wr_id = wr->wr_id;
	x->wr_flags = IBV_SEND_SIGNALED;
	switch (kind) {
	case DATAGRAM:
	case DATAGRAM_INLINE_64:
		ibv_wr_send(x);
		ibv_wr_set_ud_addr(x, ah, ud->qp_num, 7);
		break;
	case FETCH_ADD:
		ibv_wr_atomic_fetch_add(x, mr->rkey, (uintptr_t)data + 32768, 1);
		break;
	default:
		ibv_wr_rdma_write(x, mr->rkey, (uintptr_t)data + 32768);
	}
	if (kind == INLINE_64 || kind == DATAGRAM_INLINE_64)
		ibv_wr_set_inline_data(x, data, 64);
	else if (wr->num_sge > 1)
		ibv_wr_set_sge_list(x, wr->num_sge, wr->sg_list);
	else
		ibv_wr_set_sge(x, mr->lkey, (uintptr_t)data, 64);
	return ibv_wr_complete(x);
}

/* A queue that is kept full: a request is posted for each completion, or a list for as many. */
static void keep_full(int calls, enum kind kind, int list)
{
	const int is_ud = kind == DATAGRAM || kind == DATAGRAM_INLINE_64;
	struct ibv_qp *to = is_ud ? narrow_ud : narrow;
	struct ibv_qp_ex *x = is_ud ? narrow_ud_x : narrow_x;
	unsigned flags = kind == INLINE_64 || kind == DATAGRAM_INLINE_64 ? IBV_SEND_INLINE : 0;

	prepare(is_ud ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | flags, 64, 1);
	for (int i = 0; i < N; i++) {
		sends[i].sg_list = &send_sges[i % (N - 3)];
		sends[i].num_sge = kind == FOUR_SGES ? 4 : 1;
		if (is_ud) {
			sends[i].wr.ud.ah = ah;
			sends[i].wr.ud.remote_qpn = ud->qp_num;
			sends[i].wr.ud.remote_qkey = 7;
		}
		if (kind == FETCH_ADD) {
			sends[i].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
			sends[i].wr.atomic = (typeof(sends[i].wr.atomic)){ (uintptr_t)data + 32768, 1, 0, mr->rkey };
			send_sges[i].length = 8;
		}
	}
	for (int i = 0; i < NARROW; i++)
		CHECK(!ibv_post_send(to, &sends[i], &bad));
	for (int i = 0; i < N; i++)
		sends[i].next = (i + 1) % list ? &sends[i + 1] : NULL;
	for (int i = 0; i < N; i += list) {
		drain(list);
		if (calls)
			COUNTED(if (call_one(x, kind, &sends[i])) abort());
		else
			COUNTED(if (ibv_post_send(to, &sends[i], &bad)) abort());
	}
	drain(NARROW);
}

#define FULL(name, ...) static void name(void) { keep_full(__VA_ARGS__); }
FULL(full_queue, 0, ONE_SGE, 1)
FULL(full_four_sges, 0, FOUR_SGES, 1)
FULL(full_inline, 0, INLINE_64, 1)
FULL(full_ud, 0, DATAGRAM, 1)
FULL(full_ud_inline, 0, DATAGRAM_INLINE_64, 1)
FULL(full_atomic, 0, FETCH_ADD, 1)
FULL(full_list_ud, 0, DATAGRAM, 8)
FULL(full_list_inline, 0, INLINE_64, 8)
FULL(calls_full_queue, 1, ONE_SGE, 1)
FULL(calls_full_four_sges, 1, FOUR_SGES, 1)
FULL(calls_full_inline, 1, INLINE_64, 1)
FULL(calls_full_ud, 1, DATAGRAM, 1)
FULL(calls_full_ud_inline, 1, DATAGRAM_INLINE_64, 1)

static void by_calls(int list, size_t inline_length)
{
	begin();
	CALLGRIND_TOGGLE_COLLECT;
	for (int i = 0; i < N; i += list) {
		ibv_wr_start(qx);
		for (int j = 0; j < list; j++) {
			qx->wr_id = i;
			qx->wr_flags = 0;
			ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)data + 32768);
			if (inline_length)
				ibv_wr_set_inline_data(qx, data, inline_length);
			else
				ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)data, 64);
		}
		if (ibv_wr_complete(qx))
			abort();
	}
	CALLGRIND_TOGGLE_COLLECT;
	end();
	retire();
}

/* Requests whose operation or data is not of the usual kind. */
static void atomics(int calls)
{
	prepare(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 1);
	for (int i = 0; i < N; i++) {
		sends[i].wr.atomic = (typeof(sends[i].wr.atomic)){ (uintptr_t)data + 32768, 1, 0, mr->rkey };
	}
	begin();
	CALLGRIND_TOGGLE_COLLECT;
	for (int i = 0; i < N; i++) {
		if (!calls) {
			if (ibv_post_send(qp, &sends[i], &bad))
				abort();
			continue;
		}
		ibv_wr_start(qx);
		qx->wr_id = i;
		qx->wr_flags = 0;
		ibv_wr_atomic_fetch_add(qx, mr->rkey, (uintptr_t)data + 32768, 1);
		ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)data, 8);
		if (ibv_wr_complete(qx))
			abort();
	}
	CALLGRIND_TOGGLE_COLLECT;
	end();
	retire();
}

static void atomic(void) { atomics(0); }
static void calls_atomic(void) { atomics(1); }

static void two_buffers(size_t length)
{
	const struct ibv_data_buf buffers[2] = { { data, length / 2 }, { data + length / 2, length - length / 2 } };
	begin();
	CALLGRIND_TOGGLE_COLLECT;
	for (int i = 0; i < N; i++) {
		ibv_wr_start(qx);
		qx->wr_id = i;
		qx->wr_flags = 0;
		ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)data + 32768);
		ibv_wr_set_inline_data_list(qx, 2, buffers);
		if (ibv_wr_complete(qx))
			abort();
	}
	CALLGRIND_TOGGLE_COLLECT;
	end();
	retire();
}

static void two_buffers_16(void) { two_buffers(16); }
static void two_buffers_64(void) { two_buffers(64); }

/* The queue pair is in its error state, so the device does nothing but flush. */
static void invalidate(int calls)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = mr->rkey };
	begin();
	CALLGRIND_TOGGLE_COLLECT;
	for (int i = 0; i < N; i++) {
		if (!calls) {
			if (ibv_post_send(broken, &wr, &bad))
				abort();
			continue;
		}
		ibv_wr_start(broken_x);
		broken_x->wr_id = i;
		broken_x->wr_flags = 0;
		ibv_wr_local_inv(broken_x, mr->rkey);
		if (ibv_wr_complete(broken_x))
			abort();
	}
	CALLGRIND_TOGGLE_COLLECT;
	end();
	settle(&plain, N);
	for (int count = 0; count < N;)
		count += ibv_poll_cq(plain.cq, N, wc);
}

static void invalidations(void) { invalidate(0); }
static void calls_invalidations(void) { invalidate(1); }

static void calls_inline_16(void) { by_calls(1, 16); }
static void calls_inline_64(void) { by_calls(1, 64); }
static void calls_sge(void) { by_calls(1, 0); }
static void calls_batch(void) { by_calls(LIST, 0); }
static void calls_batch_inline(void) { by_calls(LIST, 16); }

static void send_ud(size_t inline_length)
{
	begin();
	CALLGRIND_TOGGLE_COLLECT;
	for (int i = 0; i < N; i++) {
		ibv_wr_start(ud_x);
		ud_x->wr_id = i;
		ud_x->wr_flags = i == N - 1 ? IBV_SEND_SIGNALED : 0;
		ibv_wr_send(ud_x);
		ibv_wr_set_ud_addr(ud_x, ah, ud->qp_num, 7);
		if (inline_length)
			ibv_wr_set_inline_data(ud_x, data, inline_length);
		else
			ibv_wr_set_sge(ud_x, mr->lkey, (uintptr_t)data, 64);
		if (ibv_wr_complete(ud_x))
			abort();
	}
	CALLGRIND_TOGGLE_COLLECT;
	end();
	drain(1);
}

static void ud_sge(void) { send_ud(0); }
static void ud_inline_16(void) { send_ud(16); }
static void ud_inline_64(void) { send_ud(64); }

static void receive(int list)
{
	prepare_receives(list);
	COUNTED(for (int i = 0; i < N; i += list) if (ibv_post_recv(qp, &receives[i], &bad_receive)) abort());
	prepare(IBV_WR_SEND, 0, 64, LIST);
	for (int i = 0; i < N; i += LIST)
		CHECK(!ibv_post_send(qp, &sends[i], &bad));
	drain(N);
	retire();
}

static void receive_one(void) { receive(1); }
static void receive_list(void) { receive(LIST); }

/* Receives of two SGEs. */
static void receive_two_sges(void)
{
	prepare_receives(1);
	for (int i = 0; i < N; i++) {
		receives[i].sg_list = &receive_sges[i % (N - 1)];
		receives[i].num_sge = 2;
	}
	COUNTED(for (int i = 0; i < N; i++) if (ibv_post_recv(wide, &receives[i], &bad_receive)) abort());
	prepare(IBV_WR_SEND, 0, 64, LIST);
	sends[N - 1].send_flags = IBV_SEND_SIGNALED;
	for (int i = 0; i < N; i += LIST)
		CHECK(!ibv_post_send(wide, &sends[i], &bad));
	drain(N + 1);
}

static void receive_shared(void)
{
	prepare_receives(1);
	COUNTED(for (int i = 0; i < N; i++) if (ibv_post_srq_recv(srq, &receives[i], &bad_receive)) abort());
}

static void poll_sends(int batch)
{
	prepare(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 64, LIST);
	for (int i = 0; i < N; i += LIST)
		CHECK(!ibv_post_send(qp, &sends[i], &bad));
	settle(&plain, N);
	COUNTED(for (int i = 0; i < N; i += batch) if (ibv_poll_cq(plain.cq, batch, wc) != batch) abort());
}

static void poll_receives(enum ibv_wr_opcode opcode, int batch)
{
	prepare_receives(LIST);
	prepare(opcode, 0, 64, LIST);
	for (int i = 0; i < N; i += LIST)
		CHECK(!ibv_post_recv(qp, &receives[i], &bad_receive) && !ibv_post_send(qp, &sends[i], &bad));
	settle(&plain, N);
	COUNTED(for (int i = 0; i < N; i += batch) if (ibv_poll_cq(plain.cq, batch, wc) != batch) abort());
	retire();
}

/* Receives whose data is in the completion, of a queue pair's own queue or a shared one. */
static void poll_inside(struct ibv_qp *to, int batch)
{
	const int is_shared = to == sharing;
	prepare_receives(LIST);
	prepare(IBV_WR_SEND, 0, 16, LIST);
	for (int i = 0; i < N; i += LIST) {
		CHECK(!(is_shared ? ibv_post_srq_recv(inside_srq, &receives[i], &bad_receive) : ibv_post_recv(to, &receives[i], &bad_receive)));
		CHECK(!ibv_post_send(to, &sends[i], &bad));
	}
	settle(&plain, N);
	COUNTED(for (int i = 0; i < N; i += batch) if (ibv_poll_cq(plain.cq, batch, wc) != batch) abort());
	prepare(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 16, 1);
	CHECK(!ibv_post_send(to, &sends[0], &bad));
	drain(1);
}

static void poll_inside_many(void) { poll_inside(inlining, BATCH); }
static void poll_inside_shared_many(void) { poll_inside(sharing, BATCH); }

static void poll_send(void) { poll_sends(1); }
static void poll_many_sends(void) { poll_sends(BATCH); }
static void poll_receive(void) { poll_receives(IBV_WR_SEND, 1); }
static void poll_many_receives(void) { poll_receives(IBV_WR_SEND, BATCH); }
static void poll_immediate(void) { poll_receives(IBV_WR_RDMA_WRITE_WITH_IMM, 1); }
static void poll_many_immediates(void) { poll_receives(IBV_WR_RDMA_WRITE_WITH_IMM, BATCH); }

static void poll_extended(int batch)
{
	struct ibv_cq_ex *cq = (struct ibv_cq_ex *)extended.cq;
	struct ibv_poll_cq_attr attr = { 0 };
	volatile uint64_t sum = 0;
	prepare(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 64, LIST);
	for (int i = 0; i < N; i += LIST)
		CHECK(!ibv_post_send(qp_extended, &sends[i], &bad));
	settle(&extended, N);
	begin();
	CALLGRIND_TOGGLE_COLLECT;
	for (int i = 0; i < N; i += batch) {
		if (ibv_start_poll(cq, &attr))
			abort();
		sum += cq->wr_id + cq->status + ibv_wc_read_opcode(cq);
		for (int j = 1; j < batch; j++) {
			if (ibv_next_poll(cq))
				abort();
			sum += cq->wr_id + cq->status + ibv_wc_read_opcode(cq);
		}
		ibv_end_poll(cq);
	}
	CALLGRIND_TOGGLE_COLLECT;
	end();
}

static void poll_fields(void) { poll_extended(1); }
static void poll_many_fields(void) { poll_extended(BATCH); }

/* The grid's operations and forms of a request. */
static const struct {
	const char *name;
	enum ibv_wr_opcode opcode;
	int is_ud, takes_receive;
} operations[] = {
	{ "SEND", IBV_WR_SEND, 0, 1 },
	{ "SEND with immediate", IBV_WR_SEND_WITH_IMM, 0, 1 },
	{ "WRITE", IBV_WR_RDMA_WRITE, 0, 0 },
	{ "WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, 0, 1 },
	{ "SEND on UD", IBV_WR_SEND, 1, 0 },
	{ "SEND with immediate on UD", IBV_WR_SEND_WITH_IMM, 1, 0 },
};
static const char *const forms[] = { "ibv_post_send", "ibv_post_send of 32", "ibv_wr_*", "ibv_wr_*, 2 buffers" };
enum form { ALONE, IN_LIST, BY_CALLS, TWO_BUFFERS };

static void name_operation(struct ibv_qp_ex *x, enum ibv_wr_opcode opcode)
{
	const uint64_t remote = (uintptr_t)data + 32768;
	switch (opcode) {
	case IBV_WR_SEND: return ibv_wr_send(x);
	case IBV_WR_SEND_WITH_IMM: return ibv_wr_send_imm(x, 7);
	case IBV_WR_RDMA_WRITE: return ibv_wr_rdma_write(x, mr->rkey, remote);
	default: return ibv_wr_rdma_write_imm(x, mr->rkey, remote, 7);
	}
}

static void call(struct ibv_qp_ex *x, enum ibv_wr_opcode opcode, enum form form, uint32_t length)
{
	const struct ibv_data_buf buffers[2] = { { data, length / 2 }, { data + length / 2, length - length / 2 } };
	CALLGRIND_TOGGLE_COLLECT;
	for (int i = 0; i < N; i++) {
		ibv_wr_start(x);
		x->wr_id = i;
		x->wr_flags = x == ud_x && i == N - 1 ? IBV_SEND_SIGNALED : 0;
		name_operation(x, opcode);
		if (x == ud_x)
			ibv_wr_set_ud_addr(x, ah, ud->qp_num, 7);
		if (form == BY_CALLS)
			ibv_wr_set_inline_data(x, data, length);
		else
			ibv_wr_set_inline_data_list(x, 2, buffers);
		if (ibv_wr_complete(x))
			abort();
	}
	CALLGRIND_TOGGLE_COLLECT;
}

static void point(enum form form, int operation, uint32_t length)
{
	const enum ibv_wr_opcode opcode = operations[operation].opcode;
	const int is_ud = operations[operation].is_ud, list = form == IN_LIST ? LIST : 1;
	struct ibv_qp *to = is_ud ? ud : qp;

	prepare_receives(LIST);
	for (int i = 0; i < N && operations[operation].takes_receive; i += LIST)
		CHECK(!ibv_post_recv(qp, &receives[i], &bad_receive));
	prepare(opcode, IBV_SEND_INLINE, length, list);
	for (int i = 0; i < N && is_ud; i++) {
		sends[i].wr.ud.ah = ah;
		sends[i].wr.ud.remote_qpn = ud->qp_num;
		sends[i].wr.ud.remote_qkey = 7;
	}
	if (is_ud)
		sends[N - 1].send_flags |= IBV_SEND_SIGNALED;
	if (form >= BY_CALLS)
		call(is_ud ? ud_x : qx, opcode, form, length);
	else
		COUNTED(for (int i = 0; i < N; i += list) if (ibv_post_send(to, &sends[i], &bad)) abort());
	if (is_ud)
		return drain(1);
	if (operations[operation].takes_receive)
		drain(N);
	retire();
}

static void grid(void)
{
	char name[99];
	for (int form = 0; form < (int)(sizeof forms / sizeof *forms); form++)
		for (int operation = 0; operation < (int)(sizeof operations / sizeof *operations); operation++)
			for (uint32_t length = 1; length <= MOST; length += 4) {
				snprintf(name, sizeof name, "%s: %s:%u", forms[form], operations[operation].name, length);
				/* The first time is as in `main`. Twice, because one of the two may be where the ring ends. */
				if (length == 1)
					point(form, operation, length);
				for (int i = 0; i < 2; i++) {
					CALLGRIND_ZERO_STATS;
					point(form, operation, length);
					CALLGRIND_DUMP_STATS_AT(name);
				}
			}
}

static const struct {
	const char *name;
	void (*run)(void);
	int libmlx5;
} cases[] = {
	{ "nothing: the loop and an indirect call", empty, 13 },
	{ "`ibv_post_send`, inline 16 B", inline_16, 338 },
	{ "`ibv_post_send`, inline 64 B", inline_64, 363 },
	{ "`ibv_post_send`, 1 SGE", one_sge, 318 },
	{ "`ibv_post_send`, list of 32, 1 SGE", list_of_sges, 177 },
	{ "`ibv_post_send`, list of 32, inline 16 B", list_of_inline, 201 },
	{ "`ibv_post_send`, 3 SGEs", three_sges, 407 },
	{ "`ibv_post_send`, list of 32, 3 SGEs", list_of_three_sges, 237 },
	{ "`ibv_post_send`, 1 SGE, a queue kept full", full_queue, 330 },
	{ "`ibv_post_send`, 4 SGEs, a queue kept full", full_four_sges, 443 },
	{ "`ibv_post_send`, inline 64 B, a queue kept full", full_inline, 376 },
	{ "`ibv_post_send`, list of 8, inline 64 B, a queue kept full", full_list_inline, 215 },
	{ "`ibv_post_send`, atomic", atomic, 328 },
	{ "`ibv_post_send`, atomic, a queue kept full", full_atomic, 333 },
	{ "`ibv_post_send`, invalidation", invalidations, 334 },
	{ "`ibv_post_send` on UD, 1 SGE, a queue kept full", full_ud, 374 },
	{ "`ibv_post_send` on UD, inline 64 B, a queue kept full", full_ud_inline, 421 },
	{ "`ibv_post_send` on UD, list of 8, a queue kept full", full_list_ud, 189 },
	{ "`ibv_wr_*`, inline 16 B", calls_inline_16, 300 },
	{ "`ibv_wr_*`, inline 64 B", calls_inline_64, 325 },
	{ "`ibv_wr_*`, 1 SGE", calls_sge, 270 },
	{ "`ibv_wr_*`, batch of 32, 1 SGE", calls_batch, 137 },
	{ "`ibv_wr_*`, batch of 32, inline 16 B", calls_batch_inline, 171 },
	{ "`ibv_wr_*`, 1 SGE, a queue kept full", calls_full_queue, 283 },
	{ "`ibv_wr_*`, 4 SGEs, a queue kept full", calls_full_four_sges, 398 },
	{ "`ibv_wr_*`, inline 64 B, a queue kept full", calls_full_inline, 345 },
	{ "`ibv_wr_*`, inline 16 B of 2 buffers", two_buffers_16, 360 },
	{ "`ibv_wr_*`, inline 64 B of 2 buffers", two_buffers_64, 382 },
	{ "`ibv_wr_*`, atomic", calls_atomic, 283 },
	{ "`ibv_wr_*`, invalidation", calls_invalidations, 348 },
	{ "`ibv_wr_*` on UD, inline 16 B", ud_inline_16, 358 },
	{ "`ibv_wr_*` on UD, inline 64 B", ud_inline_64, 383 },
	{ "`ibv_wr_*` on UD, 1 SGE", ud_sge, 328 },
	{ "`ibv_wr_*` on UD, 1 SGE, a queue kept full", calls_full_ud, 354 },
	{ "`ibv_wr_*` on UD, inline 64 B, a queue kept full", calls_full_ud_inline, 408 },
	{ "`ibv_post_recv`", receive_one, 134 },
	{ "`ibv_post_recv`, list of 32", receive_list, 66 },
	{ "`ibv_post_recv`, 2 SGEs", receive_two_sges, 156 },
	{ "`ibv_post_srq_recv`", receive_shared, 105 },
	{ "`ibv_poll_cq` of 1, send", poll_send, 193 },
	{ "`ibv_poll_cq` of 16, send", poll_many_sends, 109 },
	{ "`ibv_poll_cq` of 1, receive", poll_receive, 0 },
	{ "`ibv_poll_cq` of 16, receive", poll_many_receives, 142 },
	{ "`ibv_poll_cq` of 1, receive with immediate", poll_immediate, 244 },
	{ "`ibv_poll_cq` of 16, receive with immediate", poll_many_immediates, 144 },
	{ "`ibv_poll_cq` of 16, receive with its data inside", poll_inside_many, 225 },
	{ "`ibv_poll_cq` of 16, shared receive with its data inside", poll_inside_shared_many, 252 },
	{ "`ibv_start_poll` and `ibv_end_poll`", poll_fields, 202 },
	{ "`ibv_start_poll` and 15 `ibv_next_poll`", poll_many_fields, 160 },
};

int main(int argc, char **argv)
{
	const int is_grid = argc > 1 && !strcmp(argv[1], "grid");
	const int count = sizeof cases / sizeof *cases, chosen = is_grid ? 0 : argc > 1 ? atoi(argv[1]) : count;
	struct ibv_cq_init_attr_ex attr = { .cqe = 1023, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 511, .max_sge = 1 } };
	struct ibv_device **list;

	if (chosen >= count) {
		for (int i = 0; i < count; i++)
			printf("%d\t%d\t%s\n", i, cases[i].libmlx5, cases[i].name);
		return 0;
	}
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	plain.cq = ibv_create_cq(context, 1023, NULL, NULL, 0);
	extended.cq = (struct ibv_cq *)ibv_create_cq_ex(context, &attr);
	srq = ibv_create_srq(pd, &srq_attr);
	CHECK(mr && plain.cq && extended.cq && srq);
	qp = make_qp(plain.cq, 1, 512, 1);
	qx = ibv_qp_to_qp_ex(qp);
	qp_extended = make_qp(extended.cq, 0, 512, 1);
	narrow = make_qp(plain.cq, 1, NARROW, 4);
	narrow_x = ibv_qp_to_qp_ex(narrow);
	wide = make_qp(plain.cq, 0, 512, 4);
	ud = make_ud(512);
	ud_x = ibv_qp_to_qp_ex(ud);
	narrow_ud = make_ud(NARROW);
	narrow_ud_x = ibv_qp_to_qp_ex(narrow_ud);
	inside_srq = ibv_create_srq(pd, &srq_attr);
	CHECK(inside_srq);
	inlining = make_inside(NULL);
	sharing = make_inside(inside_srq);
	broken = make_qp(plain.cq, 1, 512, 1);
	broken_x = ibv_qp_to_qp_ex(broken);
	CHECK(!ibv_modify_qp(broken, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE));
	if (is_grid)
		return grid(), 0;
	/* The first time brings lazy binding, and sees what the poller does not know yet. In the second the poller knows how
	 * many completions the program takes at once, which makes it look its queues up anew. */
	cases[chosen].run();
	cases[chosen].run();
	CALLGRIND_ZERO_STATS;
	least = 1e9;
	/* The shared queue is never emptied. */
	for (int i = argc > 2 ? (cases[chosen].run == receive_shared ? 5 : 200) : 1; i > 0; i--)
		cases[chosen].run();
	if (argc > 2)
		printf("%.2f\n", least / N);
	return 0;
}
