/* Messages and accesses of no bytes, of each operation and on each transport: without data, with an empty SGE, and with inline data
 * of no bytes, by ibv_post_send and by ibv_wr_*. And receives that are refused, on each kind of receive queue. */
#include "common.h"
#include <infiniband/mlx5dv.h>
#include <endian.h>

#define KEY 0x1122334455667788
#define IMM 0x01020304
#define ROOM 64

enum form { NO_DATA, EMPTY_SGE, INLINE, FORMS };

static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
	IBV_WR_RDMA_READ };

static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_qp *from; /* sends */
static struct ibv_qp *own; /* takes messages of its own receive queue, or NULL */
static struct ibv_srq *srq; /* … or of this one */
static uint32_t peer; /* number of the queue pair, DC target or shared receive queue, where requests name one */
static struct ibv_ah *ah;

static struct ibv_ah_attr to_itself(void)
{
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1, .grh = { .sgid_index = gid_index(), .hop_limit = 1 } };
	CHECK(!ibv_query_gid(context, 1, gid_index(), &attr.grh.dgid));
	return attr;
}

static void to_init(struct ibv_qp *qp, int fields)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | fields));
}

static void to_rtr(struct ibv_qp *qp, uint32_t number, int fields)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = number, .min_rnr_timer = 1,
		.max_dest_rd_atomic = 1, .ah_attr = to_itself() };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | fields));
}

static void to_rts(struct ibv_qp *qp, int fields)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | fields));
}

#define RELIABLE (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)
#define CONNECTED (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define ANSWERS (IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)

static struct ibv_qp *make_sender(enum ibv_qp_type type)
{
	struct mlx5dv_qp_init_attr dc = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI };
	struct ibv_qp_init_attr_ex attr = { .send_cq = send_cq, .recv_cq = receive_cq, .qp_type = type, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
		.cap = { .max_send_wr = 8, .max_send_sge = 2, .max_inline_data = 64 } };
	struct ibv_qp *qp;

	if (type == IBV_QPT_RC || type == IBV_QPT_UC || type == IBV_QPT_UD) {
		attr.cap.max_recv_wr = 8;
		attr.cap.max_recv_sge = 2;
	}
	if (type != IBV_QPT_UD)
		attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
	if (type != IBV_QPT_UD && type != IBV_QPT_UC)
		attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ;
	qp = type == IBV_QPT_DRIVER ? mlx5dv_create_qp(context, &attr, &dc) : ibv_create_qp_ex(context, &attr);
	CHECK(qp);
	return qp;
}

static void make_connected(enum ibv_qp_type type)
{
	int is_rc = type == IBV_QPT_RC;

	from = own = make_sender(type);
	to_init(from, IBV_QP_ACCESS_FLAGS);
	to_rtr(from, from->qp_num, CONNECTED | (is_rc ? ANSWERS : 0));
	to_rts(from, is_rc ? RELIABLE : 0);
}

static void make_datagrams(void)
{
	from = own = make_sender(IBV_QPT_UD);
	peer = from->qp_num;
	to_init(from, IBV_QP_QKEY);
	to_rtr(from, 0, 0);
	to_rts(from, 0);
}

static struct ibv_xrcd *make_xrc(struct ibv_qp **target)
{
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
		.oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
	struct ibv_qp_init_attr_ex attr = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_srq_init_attr_ex shared = { .attr = { .max_wr = 8, .max_sge = 2 }, .srq_type = IBV_SRQT_XRC, .pd = pd,
		.xrcd = xrcd, .cq = receive_cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
		IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };

	CHECK(xrcd);
	*target = ibv_create_qp_ex(context, &attr);
	srq = ibv_create_srq_ex(context, &shared);
	CHECK(*target && srq && !ibv_get_srq_num(srq, &peer));
	from = make_sender(IBV_QPT_XRC_SEND);
	to_init(from, IBV_QP_ACCESS_FLAGS);
	to_init(*target, IBV_QP_ACCESS_FLAGS);
	to_rtr(from, (*target)->qp_num, CONNECTED);
	to_rtr(*target, from->qp_num, CONNECTED | ANSWERS);
	to_rts(from, RELIABLE);
	return xrcd;
}

static struct ibv_qp *make_dc(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 2 } };
	struct mlx5dv_qp_init_attr dc = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = KEY } };
	struct ibv_qp_init_attr_ex attr = { .send_cq = send_cq, .recv_cq = receive_cq, .qp_type = IBV_QPT_DRIVER, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD };
	struct ibv_qp *target;

	attr.srq = srq = ibv_create_srq(pd, &shared);
	target = mlx5dv_create_qp(context, &attr, &dc);
	CHECK(srq && target);
	to_init(target, IBV_QP_ACCESS_FLAGS);
	to_rtr(target, 0, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER);
	peer = target->qp_num;
	from = make_sender(IBV_QPT_DRIVER);
	to_init(from, 0);
	to_rtr(from, 0, IBV_QP_PATH_MTU);
	to_rts(from, RELIABLE);
	return target;
}

static void post(enum ibv_wr_opcode opcode, enum form form)
{
	struct ibv_sge empty = { (uintptr_t)buffer, 0, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &empty, .num_sge = form != NO_DATA, .opcode = opcode, .imm_data = htobe32(IMM),
		.send_flags = IBV_SEND_SIGNALED | (form == INLINE ? IBV_SEND_INLINE : 0),
		.wr.rdma = { (uintptr_t)buffer, mr->rkey } }, *bad;

	if (from->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = peer;
		wr.wr.ud.remote_qkey = 7;
	}
	wr.qp_type.xrc.remote_srqn = peer;
	CHECK(!ibv_post_send(from, &wr, &bad));
}

static void call(enum ibv_wr_opcode opcode, enum form form)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(from);

	ibv_wr_start(x);
	x->wr_id = 5;
	x->wr_flags = IBV_SEND_SIGNALED;
	switch (opcode) {
	case IBV_WR_SEND: ibv_wr_send(x); break;
	case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(x, htobe32(IMM)); break;
	case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(x, mr->rkey, (uintptr_t)buffer); break;
	case IBV_WR_RDMA_READ: ibv_wr_rdma_read(x, mr->rkey, (uintptr_t)buffer); break;
	default: ibv_wr_rdma_write_imm(x, mr->rkey, (uintptr_t)buffer, htobe32(IMM));
	}
	switch ((int)from->qp_type) {
	case IBV_QPT_UD: ibv_wr_set_ud_addr(x, ah, peer, 7); break;
	case IBV_QPT_XRC_SEND: ibv_wr_set_xrc_srqn(x, peer); break;
	case IBV_QPT_DRIVER: mlx5dv_wr_set_dc_addr(mlx5dv_qp_ex_from_ibv_qp_ex(x), ah, peer, KEY); break;
	default:;
	}
	if (form == EMPTY_SGE)
		ibv_wr_set_sge(x, mr->lkey, (uintptr_t)buffer, 0);
	else if (form == INLINE)
		ibv_wr_set_inline_data(x, buffer, 0);
	CHECK(!ibv_wr_complete(x));
}

static void deliver(enum ibv_wr_opcode opcode, enum form form, int by_calls)
{
	const int has_imm = opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	const int is_received = has_imm || opcode == IBV_WR_SEND, is_ud = from->qp_type == IBV_QPT_UD;
	struct ibv_sge sge = { (uintptr_t)buffer + 64, 64, mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 9, .sg_list = &sge, .num_sge = is_ud }, *bad;
	struct ibv_wc wc;

	if (is_received)
		CHECK(!(own ? ibv_post_recv(own, &receive, &bad) : ibv_post_srq_recv(srq, &receive, &bad)));
	if (by_calls)
		call(opcode, form);
	else
		post(opcode, form);
	wc = wait_for(send_cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5);
	if (is_received) {
		wc = wait_for(receive_cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 9 && wc.byte_len == (is_ud ? 40u : 0u));
		CHECK(!(wc.wc_flags & IBV_WC_WITH_IMM) == !has_imm && (!has_imm || wc.imm_data == htobe32(IMM)));
	}
	CHECK(ibv_poll_cq(send_cq, 1, &wc) == 0 && ibv_poll_cq(receive_cq, 1, &wc) == 0);
}

static void deliver_each(int operations)
{
	for (int operation = 0; operation < operations; operation++)
		for (int form = 0; form < FORMS; form++)
			for (int by_calls = from->qp_type == IBV_QPT_DRIVER; by_calls < 2; by_calls++)
				/* A read has no inline data. */
				if (opcodes[operation] != IBV_WR_RDMA_READ || form != INLINE)
					deliver(opcodes[operation], form, by_calls);
	CHECK(!ibv_destroy_qp(from));
	own = NULL;
}

/* What posts receives to a queue, which has room for so many, of so many SGEs. */
struct receives {
	int (*post)(struct ibv_recv_wr *, struct ibv_recv_wr **);
	int room, sges;
};

static struct ibv_wq *wq;

static int post_own(struct ibv_recv_wr *list, struct ibv_recv_wr **bad) { return ibv_post_recv(own, list, bad); }
static int post_shared(struct ibv_recv_wr *list, struct ibv_recv_wr **bad) { return ibv_post_srq_recv(srq, list, bad); }
static int post_work(struct ibv_recv_wr *list, struct ibv_recv_wr **bad) { return ibv_post_wq_recv(wq, list, bad); }

/* A list with an invalid receive: those before it are posted, and it is named. */
static void refuse(const struct receives *queue)
{
	struct ibv_sge sges[ROOM];
	struct ibv_recv_wr list[4], *bad;
	int kind, wrong, i, posted = 0;

	CHECK(queue->sges + 1 < ROOM);
	for (i = 0; i < ROOM; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)buffer, 8, mr->lkey };
	for (kind = 0; kind < 3; kind++)
		for (wrong = 0; wrong < 4; wrong++) {
			struct ibv_sge large = { (uintptr_t)buffer, 0x80000000u, mr->lkey };
			for (i = 0; i < 4; i++) /* as many SGEs as there can be, one, none, each of them first */
				list[i] = (struct ibv_recv_wr){ .sg_list = sges, .next = i < 3 ? &list[i + 1] : NULL,
					.num_sge = (i + kind) % 3 == 0 ? queue->sges : (i + kind) % 3 == 1 };
			list[wrong].num_sge = kind == 0 ? queue->sges + 1 : kind == 1 ? -1 : 1;
			if (kind == 2)
				list[wrong].sg_list = &large;
			bad = NULL;
			CHECK(queue->post(list, &bad) == EINVAL && bad == &list[wrong]);
			posted += wrong;
		}
	/* So many and no more were posted. */
	for (list[0] = (struct ibv_recv_wr){ .sg_list = sges, .num_sge = 1 }; posted < queue->room; posted++)
		CHECK(!queue->post(list, &bad));
	bad = NULL;
	CHECK(queue->post(list, &bad) == ENOMEM && bad == list);
}

static void refuse_each(void)
{
	struct ibv_qp_init_attr attr = { .send_cq = send_cq, .recv_cq = receive_cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_send_sge = 1, .max_recv_wr = 32, .max_recv_sge = 3 } };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 31, .max_sge = 3 } };
	struct ibv_wq_init_attr work = { .wq_type = IBV_WQT_RQ, .max_wr = 32, .max_sge = 3, .pd = pd, .cq = receive_cq };
	struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };

	own = ibv_create_qp(pd, &attr);
	srq = ibv_create_srq(pd, &shared);
	wq = ibv_create_wq(context, &work);
	CHECK(own && srq && wq && !ibv_modify_wq(wq, &ready));
	to_init(own, IBV_QP_ACCESS_FLAGS);
	refuse(&(struct receives){ post_own, (int)attr.cap.max_recv_wr, (int)attr.cap.max_recv_sge });
	refuse(&(struct receives){ post_shared, (int)shared.attr.max_wr, (int)shared.attr.max_sge });
	refuse(&(struct receives){ post_work, (int)work.max_wr, (int)work.max_sge });
	CHECK(!ibv_destroy_qp(own) && !ibv_destroy_srq(srq) && !ibv_destroy_wq(wq));
}

int main(void)
{
	struct ibv_ah_attr attr;
	struct ibv_qp *target;
	struct ibv_xrcd *xrcd;

	open_soft();
	attr = to_itself();
	ah = ibv_create_ah(pd, &attr);
	send_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	receive_cq = ibv_create_cq(context, 127, NULL, NULL, 0);
	CHECK(ah && send_cq && receive_cq);
	make_connected(IBV_QPT_RC);
	deliver_each(5);
	make_connected(IBV_QPT_UC);
	deliver_each(4);
	make_datagrams();
	deliver_each(2);
	xrcd = make_xrc(&target);
	deliver_each(5);
	CHECK(!ibv_destroy_qp(target) && !ibv_destroy_srq(srq) && !ibv_close_xrcd(xrcd));
	target = make_dc();
	deliver_each(5);
	CHECK(!ibv_destroy_qp(target) && !ibv_destroy_srq(srq));
	refuse_each();
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_cq(send_cq) && !ibv_destroy_cq(receive_cq));
	close_soft();
	puts("kept");
	return 0;
}
