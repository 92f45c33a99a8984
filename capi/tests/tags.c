/* Tag matching: changes of the list of tags, messages that its entries take, and messages that they do not. */
#include "common.h"
#include <infiniband/mlx5dv.h>
#include <infiniband/tm_types.h>

enum { TAGS = 7, OPS = 16, CONTEXT = 0x0a0b0c0d };
#define FIELDS (IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_TM_INFO)

static struct ibv_srq *srq;
static struct ibv_cq_ex *cq;
static struct ibv_cq *client_cq;
static struct ibv_qp *client, *server;

/* What a completion says. */
struct done {
	uint64_t wr_id, tag;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	unsigned flags, length, priv;
};

static int next(struct done *done)
{
	struct ibv_poll_cq_attr attr = {};
	struct ibv_wc_tm_info info;

	if (ibv_start_poll(cq, &attr))
		return 0;
	memset(&info, 0xff, sizeof info);
	ibv_wc_read_tm_info(cq, &info);
	are_zero(&info, END(struct ibv_wc_tm_info, priv), sizeof info);
	*done = (struct done){ .wr_id = cq->wr_id, .tag = info.tag, .priv = info.priv, .status = cq->status,
		.opcode = ibv_wc_read_opcode(cq), .flags = ibv_wc_read_wc_flags(cq), .length = ibv_wc_read_byte_len(cq) };
	ibv_end_poll(cq);
	return 1;
}

static struct done expect(uint64_t wr_id, enum ibv_wc_status status, enum ibv_wc_opcode opcode, unsigned flags)
{
	struct done done;

	while (!next(&done))
		;
	if (done.wr_id != wr_id || done.status != status || done.opcode != opcode || done.flags != flags)
		fprintf(stderr, "wr_id %#lx status %d opcode %d flags %#x\n", done.wr_id, done.status, done.opcode,
			done.flags);
	CHECK(done.wr_id == wr_id && done.status == status && done.opcode == opcode && done.flags == flags);
	return done;
}

static struct ibv_srq_init_attr_ex wanted(void)
{
	return (struct ibv_srq_init_attr_ex){ .attr = { .max_wr = 8, .max_sge = 1 }, .pd = pd,
		.cq = ibv_cq_ex_to_cq(cq), .srq_type = IBV_SRQT_TM, .tm_cap = { .max_num_tags = TAGS, .max_ops = OPS },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
			IBV_SRQ_INIT_ATTR_TM };
}

static void refuse(struct ibv_srq_init_attr_ex attr)
{
	errno = 0;
	CHECK(!ibv_create_srq_ex(context, &attr) && errno == EINVAL);
}

static void refusals(void)
{
	struct ibv_srq_init_attr_ex attr = wanted();

	attr.cq = client_cq;
	refuse(attr);
	attr = wanted();
	attr.tm_cap.max_num_tags = 0;
	refuse(attr);
	attr.tm_cap.max_num_tags = 0x10000;
	refuse(attr);
	attr.tm_cap.max_num_tags = 0xffff;
	refuse(attr);
	attr = wanted();
	attr.comp_mask &= ~IBV_SRQ_INIT_ATTR_TM;
	refuse(attr);
	attr = wanted();
	attr.comp_mask &= ~IBV_SRQ_INIT_ATTR_CQ;
	refuse(attr);
	attr = wanted();
	attr.cq = NULL;
	refuse(attr);
}

static struct ibv_qp *make(struct ibv_cq *completes, struct ibv_srq *receives, int signals_all)
{
	struct ibv_qp_init_attr attr = { .send_cq = completes, .recv_cq = completes, .srq = receives,
		.qp_type = IBV_QPT_RC, .sq_sig_all = signals_all,
		.cap = { .max_send_wr = receives ? 0 : 8, .max_recv_wr = receives ? 0 : 8, .max_send_sge = 1,
			.max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	CHECK(qp);
	return qp;
}

/* By LID, within the port. With a GRH in its messages, if `is_global`. */
static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, int is_global)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };
	struct ibv_port_attr port;

	CHECK(ibv_query_port(context, 1, &port) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .dlid = port.lid, .port_num = 1, .is_global = is_global } };
	CHECK(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* The buffer of an entry, of 256 bytes, behind what the client sends and receives. */
static struct ibv_sge place(int number)
{
	return (struct ibv_sge){ (uintptr_t)buffer + 1024 + 256 * number, 256, mr->lkey };
}

static struct ibv_ops_wr add(uint64_t tag, struct ibv_sge *sge)
{
	return (struct ibv_ops_wr){ .wr_id = 0x200 + tag, .opcode = IBV_WR_TAG_ADD, .flags = IBV_OPS_SIGNALED,
		.tm = { .add = { .recv_wr_id = 0x100 + tag, .sg_list = sge, .num_sge = !!sge, .tag = tag, .mask = -1 } } };
}

static struct ibv_ops_wr take_out(uint64_t wr_id, uint32_t handle)
{
	return (struct ibv_ops_wr){ .wr_id = wr_id, .opcode = IBV_WR_TAG_DEL, .flags = IBV_OPS_SIGNALED,
		.tm = { .handle = handle } };
}

static int change(struct ibv_ops_wr *wr)
{
	struct ibv_ops_wr *bad = NULL;
	int errnum = ibv_post_srq_ops(srq, wr, &bad);

	CHECK(!errnum == !bad && (!bad || bad == wr));
	return errnum;
}

/* Adds an entry, and returns its handle. */
static uint32_t added(uint64_t tag, struct ibv_sge *sge)
{
	struct ibv_ops_wr wr = add(tag, sge);

	CHECK(change(&wr) == 0);
	expect(0x200 + tag, IBV_WC_SUCCESS, IBV_WC_TM_ADD, 0);
	return wr.tm.handle;
}

static void synchronize(uint32_t count)
{
	struct ibv_ops_wr wr = { .wr_id = 0x300, .opcode = IBV_WR_TAG_SYNC,
		.flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC, .tm = { .unexpected_cnt = count } };

	CHECK(change(&wr) == 0);
	expect(0x300, IBV_WC_SUCCESS, IBV_WC_TM_SYNC, 0);
}

static void post_receive(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)buffer + 3072, 256, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

/* The client sends a header and `length` bytes. */
static void send_message(uint8_t operation, uint64_t tag, uint32_t length)
{
	struct ibv_tmh header = { .opcode = operation, .app_ctx = htobe32(CONTEXT), .tag = htobe64(tag) };
	struct ibv_sge sge = { (uintptr_t)buffer, sizeof header + length, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad;

	memcpy(buffer, &header, sizeof header);
	CHECK(ibv_post_send(client, &wr, &bad) == 0);
	CHECK(wait_for(client_cq).status == IBV_WC_SUCCESS);
}

static void entries_take_messages(void)
{
	struct ibv_sge one = place(0), two = place(1);
	struct done done;

	added(1, &one);
	added(2, &two);
	added(0xfedcba9876543210, NULL);
	memset(buffer + 16, 'x', 40);
	send_message(IBV_TMH_EAGER, 2, 40);
	done = expect(0x102, IBV_WC_SUCCESS, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
	CHECK(done.tag == 2 && done.priv == CONTEXT && done.length == 40);
	CHECK(memcmp(buffer + 1024 + 256, buffer + 16, 40) == 0 && !buffer[1024 + 256 + 40]);
	send_message(IBV_TMH_EAGER, 0xfedcba9876543210, 0);
	done = expect(0x100 + 0xfedcba9876543210, IBV_WC_SUCCESS, IBV_WC_TM_RECV,
		      IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
	CHECK(done.tag == 0xfedcba9876543210 && done.length == 0);
	send_message(IBV_TMH_EAGER, 1, 8);
	expect(0x101, IBV_WC_SUCCESS, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
}

/* The list has the size that was asked for. */
static void space(void)
{
	struct ibv_ops_wr wr[TAGS + 1], *bad = NULL;
	uint32_t handles[TAGS];

	for (int i = 0; i < TAGS + 1; i++) {
		wr[i] = add(i, NULL);
		wr[i].next = i < TAGS ? &wr[i + 1] : NULL;
	}
	CHECK(ibv_post_srq_ops(srq, wr, &bad) == ENOMEM && bad == &wr[TAGS]);
	for (int i = 0; i < TAGS; i++) {
		expect(0x200 + i, IBV_WC_SUCCESS, IBV_WC_TM_ADD, 0);
		handles[i] = wr[i].tm.handle;
	}
	for (int i = 0; i < TAGS; i++) {
		wr[0] = take_out(0x400 + i, handles[i]);
		CHECK(change(wr) == 0);
		expect(0x400 + i, IBV_WC_SUCCESS, IBV_WC_TM_DEL, 0);
		CHECK(change(wr) == EINVAL);
	}
	wr[0] = take_out(0, 0x10000);
	CHECK(change(wr) == EINVAL);
	wr[0] = add(0, NULL);
	wr[0].opcode = 3;
	CHECK(change(wr) == EINVAL);
	struct ibv_sge both[2] = { place(0), place(1) };
	wr[0] = add(0, both);
	wr[0].tm.add.num_sge = 2;
	CHECK(change(wr) == EINVAL);
	/* Without a completion. */
	wr[0] = add(5, NULL);
	wr[0].flags = 0;
	CHECK(change(wr) == 0);
	wr[1] = take_out(0, wr[0].tm.handle);
	CHECK(change(&wr[1]) == 0);
	expect(0, IBV_WC_SUCCESS, IBV_WC_TM_DEL, 0);
}

/* A message may take an entry while it is being removed. */
static void removals(void)
{
	struct ibv_sge sge = place(0);
	uint32_t handle = added(9, &sge);
	struct ibv_ops_wr wr = take_out(0x500, handle);

	send_message(IBV_TMH_EAGER, 9, 16);
	CHECK(change(&wr) == 0);
	expect(0x109, IBV_WC_SUCCESS, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
	expect(0x500, IBV_WC_TM_ERR, IBV_WC_TM_DEL, 0);
}

/* Messages that no entry takes, and the synchronization that is needed afterwards. */
static void unexpected(void)
{
	struct ibv_sge sge = place(0);
	struct ibv_ops_wr wr = add(4, &sge);
	struct done done;

	post_receive(0x600);
	post_receive(0x601);
	post_receive(0x602);
	memset(buffer + 16, 'y', 24);
	send_message(IBV_TMH_EAGER, 3, 24);
	done = expect(0x600, IBV_WC_SUCCESS, IBV_WC_TM_RECV, 0);
	CHECK(done.length == 40 && memcmp(buffer + 3072, buffer, 40) == 0);
	send_message(IBV_TMH_NO_TAG, 3, 24);
	expect(0x601, IBV_WC_SUCCESS, IBV_WC_TM_NO_TAG, 0);
	/* The program may have added the entry before it knew of the message. */
	CHECK(change(&wr) == 0);
	expect(0x204, IBV_WC_SUCCESS, IBV_WC_TM_ADD, IBV_WC_TM_SYNC_REQ);
	send_message(IBV_TMH_EAGER, 4, 24);
	expect(0x602, IBV_WC_SUCCESS, IBV_WC_TM_RECV, 0);
	synchronize(2);
	send_message(IBV_TMH_EAGER, 4, 24);
	expect(0x104, IBV_WC_SUCCESS, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
	added(5, &sge);
	send_message(IBV_TMH_EAGER, 5, 24);
	expect(0x105, IBV_WC_SUCCESS, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
}

/* The device reads the data, and tells the sender. */
static void rendezvous(void)
{
	struct ibv_sge sge = place(0), back = { (uintptr_t)buffer + 512, 256, mr->lkey };
	struct ibv_rvh where = { .va = htobe64((uintptr_t)buffer + 256), .rkey = htobe32(mr->rkey), .len = htobe32(200) };
	struct ibv_recv_wr wr = { .wr_id = 0x700, .sg_list = &back, .num_sge = 1 }, *bad;
	struct done done;

	added(6, &sge);
	CHECK(ibv_post_recv(client, &wr, &bad) == 0);
	memset(buffer + 256, 'z', 200);
	memcpy(buffer + 16, &where, sizeof where);
	send_message(IBV_TMH_RNDV, 6, sizeof where);
	done = expect(0x106, IBV_WC_SUCCESS, IBV_WC_TM_RECV, IBV_WC_TM_MATCH);
	CHECK(done.tag == 6 && done.priv == CONTEXT);
	done = expect(0x106, IBV_WC_SUCCESS, IBV_WC_TM_RECV, IBV_WC_TM_DATA_VALID);
	CHECK(done.length == 200 && memcmp(buffer + 1024, buffer + 256, 200) == 0);
	CHECK(wait_for(client_cq).wr_id == 0x700 && buffer[512] == IBV_TMH_FIN);
}

/* A message that fits a completion has no flag of its GRH: libmlx5 has data there, but none of an RDMA write. */
static void headers(int signals_all)
{
	struct ibv_qp *qp = make(ibv_cq_ex_to_cq(cq), NULL, signals_all);
	struct ibv_sge from = { (uintptr_t)buffer, 32, mr->lkey }, to = { (uintptr_t)buffer + 512, 256, mr->lkey };
	struct ibv_send_wr send = { .wr_id = 0x801, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad_send;
	struct ibv_recv_wr receive = { .wr_id = 0x800, .sg_list = &to, .num_sge = 1 }, *bad;

	connect_to(qp, qp, 1);
	memset(buffer, 0xff, 33);
	for (; from.length <= 33; from.length++) {
		CHECK(ibv_post_recv(qp, &receive, &bad) == 0 && ibv_post_send(qp, &send, &bad_send) == 0);
		expect(0x800, IBV_WC_SUCCESS, IBV_WC_RECV, from.length == 32 ? 0 : IBV_WC_GRH);
		expect(0x801, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	}
	from.length = 32;
	send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	send.wr.rdma.remote_addr = to.addr;
	send.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_recv(qp, &receive, &bad) == 0 && ibv_post_send(qp, &send, &bad_send) == 0);
	expect(0x800, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_GRH | IBV_WC_WITH_IMM);
	expect(0x801, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 0);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Direct verbs show the queue of receives, as they do for other queues. */
static void direct(void)
{
	struct mlx5dv_srq out = { .comp_mask = MLX5DV_SRQ_MASK_SRQN };
	struct mlx5dv_obj objects = { .srq = { .in = srq, .out = &out } };
	struct ibv_srq_attr attr;

	CHECK(mlx5dv_init_obj(&objects, MLX5DV_OBJ_SRQ) == 0 && out.buf && out.dbrec && out.srqn);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr >= 8);
}

/* A tag matching queue leaves the readers of its completion queue, which other threads may be using, as they are. */
static void readers(void)
{
	struct ibv_cq_init_attr_ex fields = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_srq *before = srq;
	struct ibv_cq_ex *all = cq, copy;
	struct ibv_srq_init_attr_ex attr;
	struct ibv_ops_wr wr = add(9, NULL);

	cq = ibv_create_cq_ex(context, &fields);
	CHECK(cq);
	copy = *cq;
	attr = wanted();
	srq = ibv_create_srq_ex(context, &attr);
	CHECK(srq && cq->read_opcode == copy.read_opcode && cq->read_wc_flags == copy.read_wc_flags);
	CHECK(change(&wr) == 0);
	expect(0x209, IBV_WC_SUCCESS, IBV_WC_TM_ADD, 0);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	srq = before;
	cq = all;
}

int main(void)
{
	struct ibv_cq_init_attr_ex fields = { .cqe = 64, .wc_flags = FIELDS };
	struct ibv_srq_init_attr_ex attr;
	struct ibv_device_attr_ex device;
	struct done done;

	open_soft();
	CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
	CHECK(device.tm_caps.max_num_tags >= TAGS && device.tm_caps.max_ops >= OPS && device.tm_caps.max_sge == 1);
	CHECK(device.tm_caps.flags == IBV_TM_CAP_RC && device.tm_caps.max_rndv_hdr_size >= 32);
	client_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	cq = ibv_create_cq_ex(context, &fields);
	CHECK(client_cq && cq);
	refusals();
	attr = wanted();
	srq = ibv_create_srq_ex(context, &attr);
	CHECK(srq && attr.attr.max_wr >= 8);
	client = make(client_cq, NULL, 0);
	server = make(ibv_cq_ex_to_cq(cq), srq, 0);
	connect_to(client, server, 0);
	connect_to(server, client, 0);

	entries_take_messages();
	space();
	removals();
	unexpected();
	rendezvous();
	headers(0);
	headers(1);
	direct();
	readers();
	CHECK(!next(&done));

	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == EBUSY);
	CHECK(ibv_destroy_qp(client) == 0 && ibv_destroy_qp(server) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_destroy_cq(client_cq) == 0);
	close_soft();
	puts("kept");
	return 0;
}
