/* What libibverbs promises a program, beyond what the usual programs try: errno values and the side they are on, what a
 * full queue says, events that are acknowledged, contexts of old programs. Prints the first promise that is not kept. */
#include "common.h"
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>

/* Of marshall.h, which not all packages install. */
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from);

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr);

static void queries(void)
{
	struct { struct ibv_port_attr attr; unsigned char guard[8]; } port;
	union ibv_gid gid;
	struct ibv_gid_entry entry;
	__be16 pkey;

	memset(&port, 0xa5, sizeof port);
	/* The symbol of libibverbs 1.1 fills a struct that ends with the kind of link. */
	CHECK(ibv_query_port(context, 1, (struct _compat_ibv_port_attr *)&port.attr) == 0);
	CHECK(port.attr.state == IBV_PORT_ACTIVE && port.attr.link_layer == IBV_LINK_LAYER_ETHERNET);
	CHECK(port.attr.flags == 0xa5 && port.guard[0] == 0xa5);
	CHECK(verbs_get_ctx_op(context, query_port));
	/* A program whose struct is shorter gets no byte more. */
	memset(&port, 0xa5, sizeof port);
	CHECK(verbs_get_ctx(context)->query_port(context, 1, &port.attr, 20) == 0);
	CHECK(((unsigned char *)&port)[20] == 0xa5 && port.attr.gid_tbl_len > 0);
	CHECK(verbs_get_ctx(context)->query_port(context, 9, &port.attr, sizeof port.attr) == EINVAL);

	CHECK(ibv_query_gid(context, 1, 3, &gid) == 0 && gid.raw[15]);
	CHECK(ibv_query_gid(context, 1, 9999, &gid) == -1 && errno == EINVAL);
	CHECK(ibv_query_gid_ex(context, 1, 3, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	CHECK(ibv_query_gid_ex(context, 1, 200, &entry, 0) == ENODATA);
	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_query_pkey(context, 1, 999, &pkey) == -1);
	CHECK(ibv_rate_to_mult(IBV_RATE_100_GBPS) > 0 && ibv_rate_to_mult(1) == -1);
	CHECK(strcmp(ibv_wc_status_str(IBV_WC_SUCCESS), "success") == 0);
}

/* As libmlx5 answers with a CQ that is not read field by field: the mask of a basic queue need not name its domain. */
static void no_tag_matching(struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 4, .max_sge = 1 }, .pd = pd, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
		.srq_type = IBV_SRQT_TM, .tm_cap = { .max_num_tags = 15, .max_ops = 10 } };
	struct ibv_ops_wr operation = { .opcode = IBV_WR_TAG_SYNC }, *bad = NULL;
	struct ibv_srq *srq;

	errno = 0;
	CHECK(!ibv_create_srq_ex(context, &attr) && errno == EINVAL);
	attr.srq_type = IBV_SRQT_BASIC;
	attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	srq = ibv_create_srq_ex(context, &attr);
	CHECK(srq && ibv_post_srq_ops(srq, &operation, &bad) == EINVAL && bad == &operation);
	CHECK(ibv_destroy_srq(srq) == 0);
}

static void refusals(struct ibv_cq *cq)
{
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	struct ibv_sge sge[64] = { { (uintptr_t)buffer, 8, mr->lkey } };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED }, *bad = NULL;
	struct ibv_send_wr list[64];
	struct ibv_recv_wr recv = { .sg_list = sge, .num_sge = 3 }, *bad_recv = NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	int i, posted;

	CHECK(ibv_qp_to_qp_ex(qp) == NULL);
	CHECK(ibv_post_send(qp, &wr, &bad) == ENOMEM && bad == &wr);
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL && errno == EINVAL);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == EBUSY);

	connect_to_itself(qp);
	wr.wr.rdma.remote_addr = (uintptr_t)buffer + 64;
	wr.wr.rdma.rkey = mr->rkey;
	wr.num_sge = 63;
	bad = NULL;
	CHECK(ibv_post_send(qp, &wr, &bad) == ENOMEM && bad == &wr);
	wr.num_sge = -1;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL);
	wr.num_sge = 1;
	wr.opcode = 99;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_RDMA_WRITE;
	sge[0].length = 4000;
	wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(qp, &wr, &bad) == ENOMEM);
	sge[0].length = 8;
	list[0] = list[1] = wr;
	list[0].next = &list[1];
	list[1].sg_list = NULL;
	list[1].num_sge = -1;
	CHECK(ibv_post_send(qp, list, &bad) == EINVAL && bad == &list[1]);
	CHECK(wait_for(cq).wr_id == 1);
	wr.send_flags = IBV_SEND_SIGNALED;

	/* A list that does not fit: those before the first that is refused are posted. */
	for (i = 0; i < 64; i++) {
		list[i] = wr;
		list[i].wr_id = 100 + i;
		list[i].next = i < 63 ? &list[i + 1] : NULL;
	}
	bad = NULL;
	CHECK(ibv_post_send(qp, list, &bad) == ENOMEM && bad);
	posted = bad - list;
	CHECK(posted >= 4 && posted < 64);
	memcpy(buffer, "written!", 8);
	for (i = 0; i < posted; i++) {
		struct ibv_wc wc = wait_for(cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 100u + i && wc.opcode == IBV_WC_RDMA_WRITE);
		CHECK(wc.qp_num == qp->qp_num);
	}

	/* Failures are reported by completions, and later requests are flushed. */
	wr.wr.rdma.rkey ^= 0x5500;
	wr.next = NULL;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	wr.wr_id = 2;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	/* The queue pair is its own peer, so either end of it may fail first. */
	CHECK(wait_for(cq).status != IBV_WC_SUCCESS);
	CHECK(wait_for(cq).status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void built_by_calls(struct ibv_cq *cq)
{
	struct ibv_qp *qp = make_qp(cq, 4, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	int i;

	CHECK(ex);
	ibv_wr_start(ex);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	connect_to_itself(qp);
	memcpy(buffer, "by calls", 8);
	ibv_wr_start(ex);
	ex->wr_id = 7;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 512);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
	CHECK(ibv_wr_complete(ex) == 0);
	CHECK(wait_for(cq).wr_id == 7 && memcmp(buffer + 512, "by calls", 8) == 0);

	/* Too many: nothing is posted, and what was posted before stays as it is. */
	ibv_wr_start(ex);
	for (i = 0; i < 200; i++) {
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 1024);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
	}
	CHECK(ibv_wr_complete(ex) == ENOMEM);
	ibv_wr_start(ex);
	ex->wr_id = 8;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 2048);
	ibv_wr_set_inline_data(ex, "inline!!", 8);
	CHECK(ibv_wr_complete(ex) == 0);
	CHECK(wait_for(cq).wr_id == 8 && memcmp(buffer + 2048, "inline!!", 8) == 0);
	CHECK(buffer[1024] == 0);
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer);
	ibv_wr_abort(ex);
	/* Operations that were not asked for, and that no device has, are no wild calls. */
	ibv_wr_start(ex);
	ibv_wr_atomic_write(ex, mr->rkey, (uintptr_t)buffer, buffer);
	CHECK(ibv_wr_complete(ex) == EOPNOTSUPP);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* The address of a datagram may come behind its data; inline data was copied by then. */
static void address_last(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 3, .hop_limit = 1 } };
	struct ibv_sge sge = { (uintptr_t)buffer, 1024, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
	char text[2][5] = { "hello", "world" };
	struct ibv_data_buf parts[2] = { { text[0], 5 }, { text[1], 5 } };
	struct ibv_ah *ah;
	struct ibv_wc wc;

	CHECK(qp && ex && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	CHECK(ibv_query_gid(context, 1, 3, &to.grh.dgid) == 0);
	ah = ibv_create_ah(pd, &to);
	CHECK(ah && ibv_post_recv(qp, &recv, &bad) == 0);
	ibv_wr_start(ex);
	ex->wr_flags = 0;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data_list(ex, 2, parts);
	memset(text, 'x', sizeof text);
	ibv_wr_set_ud_addr(ex, ah, qp->qp_num, 7);
	CHECK(ibv_wr_complete(ex) == 0);
	wc = wait_for(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 50);
	CHECK(wc.wc_flags & IBV_WC_GRH && wc.src_qp == qp->qp_num && memcmp(buffer + 40, "helloworld", 10) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_ah(ah) == 0);
}

static void events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq, *from = NULL;
	void *cookie = NULL;
	struct ibv_async_event async;
	struct ibv_qp *qp;
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	struct pollfd readable = { .events = POLLIN };

	CHECK(channel);
	cq = ibv_create_cq(context, 16, &cookie, channel, 0);
	CHECK(cq && cq->cqe >= 16 && ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_create_cq(context, 0, NULL, NULL, 0) == NULL && errno == EINVAL);
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	CHECK(ibv_get_cq_event(channel, &from, &cookie) == -1 && errno == EAGAIN);
	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
	CHECK(ibv_get_async_event(context, &async) == -1 && errno == EAGAIN);

	qp = make_qp(cq, 4, 0);
	connect_to_itself(qp);
	wr.wr.rdma.remote_addr = (uintptr_t)buffer + 64;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	readable.fd = channel->fd;
	CHECK(poll(&readable, 1, -1) == 1);
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK);
	CHECK(ibv_get_cq_event(channel, &from, &cookie) == 0 && from == cq);
	CHECK(wait_for(cq).status == IBV_WC_SUCCESS);
	ibv_ack_cq_events(cq, 1);
	/* Twice in a row, without a poll between. */
	CHECK(ibv_resize_cq(cq, 64) == 0 && cq->cqe >= 64);
	CHECK(ibv_resize_cq(cq, 30) == 0 && cq->cqe >= 30);
	/* A resize is nothing that an event reports. */
	CHECK(ibv_req_notify_cq(cq, 0) == 0 && poll(&readable, 1, 50) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

/* Programs of before rate limits, and NCCL, have a struct ibv_qp_attr that ends where rate_limit begins. */
static void short_attributes(struct ibv_cq *cq)
{
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	memset(&attr, 0xa5, sizeof attr);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RESET);
	CHECK(attr.rate_limit == 0xa5a5a5a5);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT, &init) == EOPNOTSUPP);
	/* Unknown bits, as pyverbs passes them. */
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT - 1, &init) == 0 && attr.qp_state == IBV_QPS_RESET);
	CHECK(ibv_query_qp(qp, &attr, -1, &init) == EOPNOTSUPP);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Control calls between start and the end of a post or a poll, in the same thread. */
/* Posts a write by itself. */
static void write_one(struct ibv_qp_ex *qx, uint64_t id)
{
	ibv_wr_start(qx);
	qx->wr_id = id;
	qx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)buffer + 64);
	ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)buffer, 8);
	CHECK(ibv_wr_complete(qx) == 0);
}

/* Waits for a completion; its id. */
static uint64_t polled(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	uint64_t id;

	while (ibv_start_poll(cq, &attr) == ENOENT)
		;
	CHECK(cq->status == IBV_WC_SUCCESS);
	id = cq->wr_id;
	ibv_end_poll(cq);
	return id;
}

static void calls_within_calls(void)
{
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	struct ibv_qp *qp = make_qp(ibv_cq_ex_to_cq(cq), 4, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE);
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	connect_to_itself(qp);
	ibv_wr_start(qx);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
	qx->wr_id = 7;
	qx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qx);
	ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)buffer, 8);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_wr_complete(qx) == 0);
	while (ibv_start_poll(cq, &poll_attr) == ENOENT)
		;
	CHECK(cq->wr_id == 7 && cq->status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0) == 0);
	ibv_end_poll(cq);

	/* What setters outside of start and complete record is nobody's. */
	attr.qp_state = IBV_QPS_RESET;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	connect_to_itself(qp);
	ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)buffer, 8);
	write_one(qx, 1);
	CHECK(polled(cq) == 1);

	/* A reset that is refused leaves nothing of the batch behind. */
	ibv_wr_start(qx);
	attr.qp_state = IBV_QPS_RESET;
	attr.port_num = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL);
	qx->wr_id = 2;
	ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)buffer + 64);
	ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)buffer, 8);
	CHECK(ibv_wr_complete(qx) == EINVAL);
	write_one(qx, 3);
	CHECK(polled(cq) == 3);
	CHECK(ibv_start_poll(cq, &poll_attr) == ENOENT);

	/* A reset drops requests that are being built. */
	ibv_wr_start(qx);
	attr.qp_state = IBV_QPS_RESET;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_wr_complete(qx) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

static void change(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1 };
	int mask = state == IBV_QPS_INIT ? IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS : 0;

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask) == 0);
}

/* Receives that are flushed, with the ids from `first` on. */
static void flush(struct ibv_qp *qp, uint64_t first, int count)
{
	struct ibv_recv_wr *bad;
	int i;

	change(qp, IBV_QPS_INIT);
	for (i = 0; i < count; i++) {
		struct ibv_recv_wr wr = { .wr_id = first + i };
		CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	}
	change(qp, IBV_QPS_ERR);
}

/* Completions of a queue pair that is reset or destroyed vanish, and those of others stay in order, however often that
 * happens without a poll. */
static void resets(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 15, NULL, NULL, 0);
	struct ibv_qp *mine = make_qp(cq, 4, 0), *next, *others[3];
	struct ibv_wc wc[16];
	int i, count;

	for (i = 0; i < 3; i++)
		others[i] = make_qp(cq, 4, 0);
	for (i = 0; i < 40; i++) {
		flush(mine, 1000, 4);
		if (i % 16 == 5)
			flush(others[i / 16], 10 * (i / 16), 2);
		next = make_qp(cq, 4, 0);
		flush(next, 2000, 4);
		change(mine, IBV_QPS_RESET);
		CHECK(ibv_destroy_qp(next) == 0);
	}
	for (count = 0; count < 6; count += i) {
		i = ibv_poll_cq(cq, 16 - count, wc + count);
		CHECK(i >= 0);
	}
	for (i = 0; i < 6; i++)
		CHECK(wc[i].wr_id == (uint64_t)(10 * (i / 2) + i % 2) && wc[i].status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_poll_cq(cq, 16, wc) == 0);
	for (i = 0; i < 3; i++)
		CHECK(ibv_destroy_qp(others[i]) == 0);
	CHECK(ibv_destroy_qp(mine) == 0 && ibv_destroy_cq(cq) == 0);
}

/* No queue is deeper than the device announces. */
static void depths(struct ibv_cq *cq)
{
	struct ibv_device_attr device;
	struct ibv_qp_init_attr attr;
	struct ibv_srq_init_attr srq = { .attr = { .max_sge = 1 } };
	struct ibv_srq *made;
	int side;

	CHECK(ibv_query_device(context, &device) == 0);
	for (side = 0; side < 2; side++) {
		memset(&attr, 0, sizeof attr);
		attr.send_cq = attr.recv_cq = cq;
		attr.qp_type = IBV_QPT_UD;
		attr.cap.max_send_wr = side ? 1 : device.max_qp_wr + 1;
		attr.cap.max_recv_wr = side ? device.max_qp_wr + 1 : 1;
		attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
		errno = 0;
		CHECK(ibv_create_qp(pd, &attr) == NULL && errno == EINVAL);
	}
	srq.attr.max_wr = device.max_srq_wr + 1;
	errno = 0;
	CHECK(ibv_create_srq(pd, &srq) == NULL && errno == EINVAL);
	/* One without receives, as pyverbs makes it. */
	memset(&srq, 0, sizeof srq);
	made = ibv_create_srq(pd, &srq);
	CHECK(made && ibv_destroy_srq(made) == 0);
}

/* A queue pair with few requests of up to three SGEs or 200 bytes, which sends to itself. */
static struct ibv_qp *narrow_qp(struct ibv_cq *cq, enum ibv_qp_type type, unsigned *depth)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | (type == IBV_QPT_RC ? IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ : 0),
		.cap = { .max_send_wr = 4, .max_send_sge = 3, .max_inline_data = 200 } };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };

	CHECK(qp && init.cap.max_inline_data >= 200);
	*depth = init.cap.max_send_wr;
	if (type == IBV_QPT_RC) {
		connect_to_itself(qp);
		return qp;
	}
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	change(qp, IBV_QPS_RTR);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	return qp;
}

/* Posts a request by calls. */
static int call(struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

	ibv_wr_start(ex);
	ex->wr_id = wr->wr_id;
	ex->wr_flags = wr->send_flags & ~IBV_SEND_INLINE;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr); break;
	case IBV_WR_RDMA_READ: ibv_wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr); break;
	default: ibv_wr_send(ex); ibv_wr_set_ud_addr(ex, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
	}
	if (wr->send_flags & IBV_SEND_INLINE)
		ibv_wr_set_inline_data(ex, (void *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
	else if (wr->num_sge == 1)
		ibv_wr_set_sge(ex, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	else if (wr->num_sge)
		ibv_wr_set_sge_list(ex, wr->num_sge, wr->sg_list);
	return ibv_wr_complete(ex);
}

/* A queue that is kept full: each completion that is polled lets one request more be posted, whatever its size and form. */
static void kept_full(struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = gid_index(), .hop_limit = 1 } };
	unsigned random = 1, posted = 0, polled = 0, step, i, by_calls, depth;
	struct ibv_qp *qp = narrow_qp(cq, type, &depth);
	struct ibv_sge sge[3];
	struct ibv_send_wr wr = { .sg_list = sge, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_ah *ah;

	CHECK(ibv_query_gid(context, 1, gid_index(), &to.grh.dgid) == 0 && (ah = ibv_create_ah(pd, &to)));
	for (step = 0; step < 6000; step++) {
		random = random * 1103515245 + 12345;
		for (i = 0; i < 3; i++)
			sge[i] = (struct ibv_sge){ (uintptr_t)buffer + 200 * i, 1 + (random >> 8) % 200, mr->lkey };
		wr.wr_id = posted;
		wr.num_sge = 1;
		wr.send_flags = IBV_SEND_SIGNALED;
		if (type == IBV_QPT_RC) {
			wr.opcode = random >> 16 & 3 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
			wr.wr.rdma.remote_addr = (uintptr_t)buffer + 1024;
			wr.wr.rdma.rkey = mr->rkey;
		} else {
			wr.wr.ud.ah = ah;
			wr.wr.ud.remote_qpn = qp->qp_num;
			wr.wr.ud.remote_qkey = 7;
		}
		if (wr.opcode != IBV_WR_RDMA_READ && random >> 18 & 3)
			wr.send_flags |= IBV_SEND_INLINE;
		else if (random >> 20 & 1)
			wr.num_sge = (random >> 21) % 4;
		by_calls = random >> 24 & 1;
		bad = NULL;
		if (posted - polled < depth) {
			CHECK((by_calls ? call(qp, &wr) : ibv_post_send(qp, &wr, &bad)) == 0 && !bad);
			posted++;
		} else {
			CHECK((by_calls ? call(qp, &wr) : ibv_post_send(qp, &wr, &bad)) == ENOMEM && bad == (by_calls ? NULL : &wr));
			CHECK(wait_for(cq).wr_id == polled);
			polled++;
		}
	}
	for (; polled < posted; polled++)
		CHECK(wait_for(cq).wr_id == polled);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_ah(ah) == 0);
}

/* Lists on a queue that is kept full, of one SGE and of several: they are posted up to the first request that has no space. */
static void lists_kept_full(struct ibv_cq *cq)
{
	unsigned random = 1, posted = 0, polled = 0, step, i, space, depth;
	struct ibv_qp *qp = narrow_qp(cq, IBV_QPT_RC, &depth);
	struct ibv_sge sge[3];
	struct ibv_send_wr list[3], *bad;

	for (i = 0; i < 3; i++)
		sge[i] = (struct ibv_sge){ (uintptr_t)buffer + 200 * i, 50, mr->lkey };
	for (step = 0; step < 3000; step++) {
		random = random * 1103515245 + 12345;
		for (i = 0; i < 3; i++)
			list[i] = (struct ibv_send_wr){ .wr_id = posted + i, .next = i < 2 ? &list[i + 1] : NULL, .sg_list = sge,
				.num_sge = random >> (8 + 2 * i) & 3, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				.wr.rdma = { (uintptr_t)buffer + 1024, mr->rkey } };
		space = depth - (posted - polled);
		bad = NULL;
		CHECK(ibv_post_send(qp, list, &bad) == (space < 3 ? ENOMEM : 0));
		CHECK(bad == (space < 3 ? &list[space] : NULL));
		posted += space < 3 ? space : 3;
		for (i = random >> 16 & 3; i > 0 && polled < posted; i--, polled++)
			CHECK(wait_for(cq).wr_id == polled);
	}
	for (; polled < posted; polled++)
		CHECK(wait_for(cq).wr_id == polled);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* The bytes of several SGEs arrive one behind the other, from a request alone and from a list. */
static void several_sges(struct ibv_cq *cq)
{
	unsigned depth;
	struct ibv_qp *qp = narrow_qp(cq, IBV_QPT_RC, &depth);
	struct ibv_sge sge[3] = { { (uintptr_t)buffer + 7, 1, mr->lkey }, { (uintptr_t)buffer, 3, mr->lkey },
		{ (uintptr_t)buffer + 4, 2, mr->lkey } };
	struct ibv_send_wr list[2] = { { .sg_list = sge, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)buffer + 1024, mr->rkey } } }, *bad;
	static const char *const arrived[] = { "", "h", "habc", "habcef" };
	int count, length;

	memcpy(buffer, "abcdefgh", 8);
	for (count = 0; count < 4; count++)
		for (length = 1; length <= 2; length++) {
			memset(buffer + 1024, 0, 128);
			list[0].num_sge = count;
			list[1] = list[0];
			list[1].wr.rdma.remote_addr += 64;
			list[0].next = length == 2 ? &list[1] : NULL;
			CHECK(ibv_post_send(qp, list, &bad) == 0);
			CHECK(wait_for(cq).status == IBV_WC_SUCCESS);
			CHECK(length == 1 || wait_for(cq).status == IBV_WC_SUCCESS);
			CHECK(strcmp(buffer + 1024, arrived[count]) == 0);
			CHECK(strcmp(buffer + 1088, length == 2 ? arrived[count] : "") == 0);
		}
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Messages with immediate data and without, polled one by one and several at a time. */
static void immediates(struct ibv_cq *cq)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND_WITH_IMM };
	struct ibv_cq *own = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = own, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_wc wc[6];
	int batch, round, i, count, polled;

	CHECK(own && qp);
	connect_to_itself(qp);
	for (batch = 1; batch <= 6; batch++)
		for (round = 0; round < 8; round++) {
			for (i = 0; i < 6; i++) {
				struct ibv_sge sge = { (uintptr_t)buffer + 2048, 100, mr->lkey }, from = { (uintptr_t)buffer, 40 + i, mr->lkey };
				struct ibv_recv_wr recv = { .wr_id = 10 + i, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
				struct ibv_send_wr wr = { .sg_list = &from, .num_sge = 1, .opcode = opcodes[i % 3], .imm_data = htobe32(100 + i),
					.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buffer + 1024, mr->rkey } }, *bad;
				CHECK(ibv_post_recv(qp, &recv, &bad_recv) == 0 && ibv_post_send(qp, &wr, &bad) == 0);
				CHECK(wait_for(cq).status == IBV_WC_SUCCESS);
			}
			for (count = 0; count < 6; count += polled) {
				memset(wc, 0xa5, sizeof wc);
				polled = ibv_poll_cq(own, batch, wc);
				CHECK(polled >= 0);
				for (i = 0; i < polled; i++) {
					const int at = count + i, is_write = at % 3 == 1;
					CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == 10u + at && wc[i].byte_len == 40u + at);
					CHECK(wc[i].opcode == (is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV));
					CHECK(wc[i].imm_data == (at % 3 ? htobe32(100 + at) : 0));
					CHECK((wc[i].wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) == (at % 3 ? IBV_WC_WITH_IMM : 0));
					CHECK(wc[i].qp_num == qp->qp_num && wc[i].vendor_err == 0);
				}
			}
		}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(own) == 0);
}

/* Messages so short that the completion has them inside, between others and between sends, polled one by one and several at a
 * time: they arrive in the buffers of the receive, the queue pair's own or a shared one. */
static void short_messages(int is_shared)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM };
	struct ibv_cq *cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 2 } };
	struct ibv_srq *srq = is_shared ? ibv_create_srq(pd, &shared) : NULL;
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 2 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	unsigned random = 1, round, i, sent, received;
	struct ibv_wc wc[13];
	int batch, polled, at;

	CHECK(cq && qp && !is_shared == !srq);
	connect_to_itself(qp);
	for (i = 0; i < 64; i++)
		buffer[i] = 'a' + i;
	for (batch = 1; batch <= 13; batch++)
		for (round = 0; round < 8; round++) {
			unsigned length[6], first[6];
			memset(buffer + 1024, 0, 1024);
			for (i = 0; i < 6; i++) {
				random = random * 1103515245 + 12345;
				length[i] = 1 + (random >> 16) % (random >> 12 & 3 ? 32 : 60);
				first[i] = random >> 24 & 1 ? 5 : 60;
				struct ibv_sge from = { (uintptr_t)buffer, length[i], mr->lkey }, to[2] = {
					{ (uintptr_t)buffer + 1024 + 128 * i, first[i], mr->lkey },
					{ (uintptr_t)buffer + 1088 + 128 * i, 60, mr->lkey } };
				struct ibv_recv_wr recv = { .wr_id = 10 + i, .sg_list = to, .num_sge = 2 }, *bad_recv;
				struct ibv_send_wr wr = { .wr_id = 20 + i, .sg_list = &from, .num_sge = 1, .opcode = opcodes[i % 3],
					.imm_data = htobe32(100 + i), .send_flags = i % 2 ? IBV_SEND_SIGNALED : 0 }, *bad;
				CHECK((srq ? ibv_post_srq_recv(srq, &recv, &bad_recv) : ibv_post_recv(qp, &recv, &bad_recv)) == 0);
				CHECK(ibv_post_send(qp, &wr, &bad) == 0);
			}
			for (sent = received = 0; sent < 3 || received < 6;) {
				memset(wc, 0xa5, sizeof wc);
				polled = ibv_poll_cq(cq, batch, wc);
				CHECK(polled >= 0);
				for (at = 0; at < polled; at++) {
					CHECK(wc[at].status == IBV_WC_SUCCESS && wc[at].qp_num == qp->qp_num && wc[at].vendor_err == 0);
					if (wc[at].opcode == IBV_WC_SEND) {
						CHECK(wc[at].wr_id == 21 + 2 * sent++);
						continue;
					}
					i = received++;
					CHECK(wc[at].opcode == IBV_WC_RECV && wc[at].wr_id == 10 + i && wc[at].byte_len == length[i]);
					CHECK(wc[at].imm_data == (i % 3 == 2 ? htobe32(100 + i) : 0));
					CHECK((wc[at].wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) == (i % 3 == 2 ? IBV_WC_WITH_IMM : 0));
					unsigned in_first = length[i] < first[i] ? length[i] : first[i];
					const char *to = buffer + 1024 + 128 * i;
					CHECK(memcmp(to, buffer, in_first) == 0 && to[in_first] == 0);
					CHECK(memcmp(to + 64, buffer + in_first, length[i] - in_first) == 0 && to[64 + length[i] - in_first] == 0);
				}
			}
		}
	CHECK(ibv_destroy_qp(qp) == 0 && (!srq || ibv_destroy_srq(srq) == 0) && ibv_destroy_cq(cq) == 0);
}

/* Receives of none to all SGEs, alone and in lists with others, one of the SGEs empty or none: messages as long as they are fill
 * them, and no byte behind. */
static void scattered_receives(int is_shared)
{
	enum { MOST = 4, PART = 20 };
	struct ibv_cq *cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = MOST } };
	struct ibv_srq *srq = is_shared ? ibv_create_srq(pd, &shared) : NULL;
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = MOST } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	int count, empty, length, i, part;

	CHECK(cq && qp && !is_shared == !srq);
	connect_to_itself(qp);
	for (i = 0; i < MOST * PART; i++)
		buffer[i] = '0' + i;
	for (count = 0; count <= MOST; count++)
		for (empty = -1; empty < count; empty++)
			for (length = 1; length <= 3; length++) {
				struct ibv_recv_wr list[3], *bad_recv;
				struct ibv_sge sge[3][MOST];
				memset(buffer + 1024, 0, 1024);
				for (i = 0; i < length; i++) {
					/* The middle one of three has one SGE, as is usual. */
					const int own = i == 1 ? 1 : count;
					for (part = 0; part < own; part++)
						sge[i][part] = (struct ibv_sge){ (uintptr_t)buffer + 1024 + 256 * i + 32 * part,
							i != 1 && part == empty ? 0 : PART, mr->lkey };
					list[i] = (struct ibv_recv_wr){ .wr_id = 10 + i, .next = i + 1 < length ? &list[i + 1] : NULL,
						.sg_list = sge[i], .num_sge = own };
				}
				CHECK((srq ? ibv_post_srq_recv(srq, list, &bad_recv) : ibv_post_recv(qp, list, &bad_recv)) == 0);
				for (i = 0; i < length; i++) {
					const int parts = i == 1 ? 1 : count - (empty >= 0), used = list[i].num_sge;
					struct ibv_sge from = { (uintptr_t)buffer, parts * PART, mr->lkey };
					struct ibv_send_wr wr = { .sg_list = &from, .num_sge = parts > 0, .opcode = IBV_WR_SEND }, *bad;
					struct ibv_wc wc;
					const char *sent = buffer;
					CHECK(ibv_post_send(qp, &wr, &bad) == 0);
					wc = wait_for(cq);
					CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 10u + i && wc.byte_len == (unsigned)parts * PART);
					for (part = 0; part < MOST; part++) {
						const char *to = buffer + 1024 + 256 * i + 32 * part;
						const int filled = part < used && sge[i][part].length ? PART : 0;
						CHECK(memcmp(to, sent, filled) == 0 && to[filled] == 0);
						sent += filled;
					}
				}
				/* Frees the entries of the unsignaled sends. */
				struct ibv_send_wr last = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
				CHECK(ibv_post_send(qp, &last, &bad) == 0 && wait_for(cq).wr_id == 1);
			}
	CHECK(ibv_destroy_qp(qp) == 0 && (!srq || ibv_destroy_srq(srq) == 0) && ibv_destroy_cq(cq) == 0);
}

/* As in libmlx5, a variable that asks for entries of a size that there is not is not passed over. */
static void sizes_of_entries(void)
{
	static const char *const sizes[] = { "64", "128", "100" };
	struct ibv_cq_init_attr_ex attr = { .cqe = 4 };
	struct ibv_cq_ex *extended;
	struct ibv_cq *cq;
	int i;

	for (i = 0; i < 3; i++) {
		setenv("MLX5_CQE_SIZE", sizes[i], 1);
		errno = 0;
		cq = ibv_create_cq(context, 4, NULL, NULL, 0);
		CHECK(i < 2 ? cq && ibv_destroy_cq(cq) == 0 : !cq && errno == EINVAL);
		errno = 0;
		extended = ibv_create_cq_ex(context, &attr);
		CHECK(i < 2 ? extended && ibv_destroy_cq(ibv_cq_ex_to_cq(extended)) == 0 : !extended && errno == EINVAL);
	}
	unsetenv("MLX5_CQE_SIZE");
}

/* The receiving end of XRC has no completion queue, whatever a program names: that one may go first. */
static void receivers_of_xrc(void)
{
	struct ibv_xrcd_init_attr xrcd_attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
		.oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &xrcd_attr);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);

	CHECK(xrcd && cq && qp && !qp->send_cq && !qp->recv_cq);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_qp(qp) == 0 && ibv_close_xrcd(xrcd) == 0);
}

/* The array of no counters may be NULL. */
static void no_counters(void)
{
	struct ibv_counters_init_attr attr = { 0 };
	struct ibv_counters *counters = ibv_create_counters(context, &attr);
	CHECK(counters);
	ibv_read_counters(counters, NULL, 0, 0);
	CHECK(ibv_destroy_counters(counters) == 0);
}

/* A completion queue uses its parent domain, as a queue pair does. */
static void parent_domains(void)
{
	struct ibv_parent_domain_init_attr attr = { .pd = pd };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
		.parent_domain = parent };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	CHECK(parent && cq);
	CHECK(ibv_dealloc_pd(parent) == EBUSY);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_dealloc_pd(parent) == 0);
	/* Memory that a confidential guest shares (rdma-core 65) is something that is known and not there. */
	attr.comp_mask = 1 << 2;
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = 1 << 9;
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
}

static void *wait_for_completions(void *channel)
{
	struct ibv_cq *cq;
	void *cq_context;
	ibv_get_cq_event(channel, &cq, &cq_context);
	return NULL;
}

static void *wait_for_anything(void *unused)
{
	struct ibv_async_event event;
	ibv_get_async_event(context, &event);
	return unused;
}

/* rping cancels its thread in ibv_get_cq_event. */
static void cancelled_threads(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	pthread_t thread;
	void *result = NULL;
	CHECK(pthread_create(&thread, NULL, wait_for_completions, channel) == 0);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) & ~O_NONBLOCK);
	CHECK(pthread_create(&thread, NULL, wait_for_anything, NULL) == 0);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

/* Programs of newer releases have longer structs: what the library does not know is zero. */
static void longer_structs(void)
{
	struct { struct ibv_port_attr attr; unsigned char tail[16]; } port;
	struct { struct ibv_device_attr_ex attr; unsigned char tail[64]; } device;
	struct { struct ibv_gid_entry entry; unsigned char tail[8]; } gids[64];
	unsigned i;

	memset(&port, 0xa5, sizeof port);
	CHECK(verbs_get_ctx(context)->query_port(context, 1, &port.attr, sizeof port) == 0);
	memset(&device, 0xa5, sizeof device);
	CHECK(verbs_get_ctx(context)->query_device_ex(context, NULL, &device.attr, sizeof device) == 0);
	memset(gids, 0xa5, sizeof gids);
	CHECK(_ibv_query_gid_table(context, &gids[0].entry, 64, 0, sizeof gids[0]) > 0);
	/* The header may be that of rdma-core 44, whose structs are shorter than the library's. */
	for (i = 8; i < sizeof port.tail; i++)
		CHECK(port.tail[i] == 0);
	for (i = sizeof device.tail / 2; i < sizeof device.tail; i++)
		CHECK(device.tail[i] == 0);
	for (i = 0; i < sizeof gids[0].tail; i++)
		CHECK(gids[0].tail[i] == 0);
}

/* The result of an atomic has 8 bytes, whatever the SGE says, in both ways of posting. */
static void atomic_results(struct ibv_cq *cq)
{
	struct ibv_qp *qp = make_qp(cq, 4, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	uint64_t *values = (uint64_t *)buffer;
	struct ibv_sge sge = { (uintptr_t)values, 64, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.send_flags = IBV_SEND_SIGNALED }, *bad;

	connect_to_itself(qp);
	values[0] = values[1] = 0;
	values[8] = 40;
	wr.wr.atomic.remote_addr = (uintptr_t)&values[8];
	wr.wr.atomic.rkey = mr->rkey;
	wr.wr.atomic.compare_add = 2;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	CHECK(wait_for(cq).status == IBV_WC_SUCCESS && values[0] == 40 && values[8] == 42 && values[1] == 0);
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)&values[8], 1);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)values, 64);
	CHECK(ibv_wr_complete(ex) == 0);
	CHECK(wait_for(cq).status == IBV_WC_SUCCESS && values[0] == 42 && values[8] == 43 && values[1] == 0);
	/* Two in a batch, the second with a list. */
	ibv_wr_start(ex);
	ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)&values[8], 1);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)values, 4);
	ibv_wr_atomic_cmp_swp(ex, mr->rkey, (uintptr_t)&values[8], 44, 7);
	ibv_wr_set_sge_list(ex, 1, &sge);
	CHECK(ibv_wr_complete(ex) == 0);
	CHECK(wait_for(cq).status == IBV_WC_SUCCESS && wait_for(cq).status == IBV_WC_SUCCESS);
	CHECK(values[0] == 44 && values[8] == 7);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* A request without the destination that its service needs is refused, and nothing is posted. */
static void destinations_missing(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_XRC_SEND, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
		.cap = { .max_send_wr = 4, .max_send_sge = 1, .max_inline_data = 64 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	int inline_data;

	CHECK(qp && ex);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.sgid_index = 3;
	CHECK(ibv_query_gid(context, 1, 3, &attr.ah_attr.grh.dgid) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			    IBV_QP_RQ_PSN) == 0);
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	for (inline_data = 0; inline_data < 2; inline_data++) {
		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(ex);
		if (inline_data)
			ibv_wr_set_inline_data(ex, buffer, 8);
		else
			ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
		CHECK(ibv_wr_complete(ex) == EINVAL);
	}
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Where a datagram's address handle would be, other operations have the peer's address: it is never followed. */
static void operations_without_handles(struct ibv_cq *cq)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
		IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_SEND_WITH_INV, IBV_WR_LOCAL_INV };
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	unsigned i;

	CHECK(qp && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	change(qp, IBV_QPS_RTR);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	for (i = 0; i < 2 * sizeof opcodes / sizeof *opcodes; i++) {
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcodes[i / 2] }, *bad = NULL;
		/* Not mapped: the first of the union's fields is the handle's and the remote address. */
		wr.wr.rdma.remote_addr = 0x1000;
		wr.next = i & 1 ? &wr : NULL;
		CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	}
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* A context that is closed before its objects: they are destroyed as before, in any order, and read no memory that is
 * used again. */
static void closed_before_its_objects(void)
{
	struct ibv_context *other = ibv_open_device(context->device);
	struct ibv_td_init_attr threads = { 0 };
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
		.oflags = O_CREAT };
	struct ibv_pd *pd = ibv_alloc_pd(other);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_td *td = ibv_alloc_td(other, &threads);
	struct ibv_xrcd *xrcd = ibv_open_xrcd(other, &domain);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(other);
	struct ibv_cq *cq = ibv_create_cq(other, 16, NULL, channel, 0);
	struct ibv_srq_init_attr receives = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &receives);
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	struct ibv_wq_init_attr frames = { .wq_type = IBV_WQT_RQ, .max_wr = 16, .max_sge = 1, .pd = pd, .cq = cq };
	struct ibv_wq *wq = ibv_create_wq(other, &frames);
	struct ibv_td *last = ibv_alloc_td(other, &threads);
	void *reused[256];
	int i;

	CHECK(mr && mw && td && xrcd && qp && wq && last);
	CHECK(ibv_close_device(other) == 0);
	/* Allocates the freed memory again, and overwrites it. */
	for (i = 0; i < 256; i++) {
		reused[i] = malloc(64 + 8 * i);
		memset(reused[i], 0xff, 64 + 8 * i);
	}
	CHECK(ibv_dealloc_pd(pd) == EBUSY && ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_dealloc_td(td) == 0 && ibv_close_xrcd(xrcd) == 0 && ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_wq(wq) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_dealloc_td(last) == 0);
	for (i = 0; i < 256; i++)
		free(reused[i]);
}

/* Receives cannot be posted to a queue pair that shares them: each is refused, and nothing waits
 * for a lock. */
static void receives_of_no_queue(struct ibv_cq *cq)
{
	struct ibv_srq_init_attr receives = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &receives);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad = NULL;

	CHECK(srq && qp && ibv_post_recv(qp, NULL, &bad) == 0 && !bad);
	CHECK(ibv_post_recv(qp, &wr, &bad) == ENOMEM && bad == &wr);
	connect_to_itself(qp);
	CHECK(ibv_post_recv(qp, &wr, &bad) == ENOMEM && ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0);
}

/* Waits for a completion, which ends with zeroes. */
static void completes(struct ibv_cq *cq, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	do
		memset(&wc, 0xff, sizeof wc);
	while (ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(wc.status == status);
	are_zero(&wc, END(struct ibv_wc, dlid_path_bits), sizeof wc);
}

/* What a verb fills in has zeroes between its fields, and nothing that was in the library's memory. */
static void bytes_between_fields(struct ibv_cq *cq)
{
	typedef struct ibv_device_attr_ex device_attr;
	typedef struct ibv_qp_attr qp_attr;
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	struct ib_user_path_rec kernel_path = { .pkey = 1 };
	struct ibv_sge from = { .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey };
	struct ibv_sge to = { .addr = (uintptr_t)buffer + 64, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr send = {
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &from, .num_sge = 1,
	};
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad;
	struct ibv_send_wr *bad_send;
	struct ibv_sa_path_rec path;
	struct ibv_qp_init_attr init;
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	device_attr all;
	qp_attr attr;

	memset(&device, 0xff, sizeof device);
	CHECK(ibv_query_device(context, &device) == 0);
	are_zero(&device, END(struct ibv_device_attr, phys_port_cnt), sizeof device);
	memset(&all, 0xff, sizeof all);
	CHECK(ibv_query_device_ex(context, NULL, &all) == 0);
	are_zero(&all, END(device_attr, orig_attr.phys_port_cnt), END(device_attr, orig_attr));
	are_zero(&all, END(device_attr, comp_mask), offsetof(device_attr, odp_caps));
	are_zero(&all, END(device_attr, odp_caps.per_transport_caps), END(device_attr, odp_caps));
	are_zero(&all, END(device_attr, rss_caps.max_rwq_indirection_table_size),
		offsetof(device_attr, rss_caps.rx_hash_fields_mask));
	are_zero(&all, END(device_attr, rss_caps.rx_hash_function), END(device_attr, rss_caps));
	are_zero(&all, END(device_attr, cq_mod_caps), offsetof(device_attr, max_dm_size));
	are_zero(&all, END(device_attr, pci_atomic_caps), offsetof(device_attr, xrc_odp_caps));
	memset(&port, 0xff, sizeof port);
	CHECK(___ibv_query_port(context, 1, &port) == 0);
	are_zero(&port, END(struct ibv_port_attr, port_cap_flags2), (END(struct ibv_port_attr, port_cap_flags2) + 3) & ~3);
	memset(&attr, 0xff, sizeof attr);
	memset(&init, 0xff, sizeof init);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	are_zero(&attr, END(qp_attr, ah_attr.grh.traffic_class), END(qp_attr, ah_attr.grh));
	are_zero(&attr, END(qp_attr, ah_attr.port_num), END(qp_attr, ah_attr));
	are_zero(&attr, END(qp_attr, alt_timeout), offsetof(qp_attr, rate_limit));
	are_zero(&init, END(struct ibv_qp_init_attr, sq_sig_all), sizeof init);
	memset(&path, 0xff, sizeof path);
	ibv_copy_path_rec_from_kern(&path, &kernel_path);
	are_zero(&path, END(struct ibv_sa_path_rec, traffic_class),
		 offsetof(struct ibv_sa_path_rec, reversible));
	are_zero(&path, END(struct ibv_sa_path_rec, numb_path), offsetof(struct ibv_sa_path_rec, pkey));
	connect_to_itself(qp);
	CHECK(ibv_post_recv(qp, &receive, &bad) == 0 && ibv_post_send(qp, &send, &bad_send) == 0);
	completes(cq, IBV_WC_SUCCESS);
	completes(cq, IBV_WC_SUCCESS);
	CHECK(ibv_post_recv(qp, &receive, &bad) == 0);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	completes(cq, IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_destroy_qp(qp) == 0);
}

int main(void)
{
	struct ibv_cq *cq;

	open_soft();
	CHECK(ibv_get_device_guid(context->device));
	CHECK(strcmp(ibv_get_device_name(context->device), "soft0") == 0);
	CHECK(mr && mr->addr == buffer && mr->length == sizeof buffer);
	CHECK(ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_REMOTE_WRITE) == NULL && errno == EINVAL);
	CHECK(ibv_reg_mr(pd, (void *)1, 64, IBV_ACCESS_LOCAL_WRITE) == NULL && errno == EFAULT);
	CHECK(ibv_rereg_mr(mr, 64, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	CHECK(cq);
	queries();
	no_tag_matching(cq);
	refusals(cq);
	built_by_calls(cq);
	address_last(cq);
	events();
	short_attributes(cq);
	calls_within_calls();
	resets();
	depths(cq);
	kept_full(cq, IBV_QPT_RC);
	kept_full(cq, IBV_QPT_UD);
	lists_kept_full(cq);
	several_sges(cq);
	immediates(cq);
	short_messages(0);
	short_messages(1);
	scattered_receives(0);
	scattered_receives(1);
	sizes_of_entries();
	parent_domains();
	receivers_of_xrc();
	no_counters();
	cancelled_threads();
	longer_structs();
	atomic_results(cq);
	destinations_missing(cq);
	operations_without_handles(cq);
	receives_of_no_queue(cq);
	bytes_between_fields(cq);
	closed_before_its_objects();
	CHECK(ibv_destroy_cq(cq) == 0);
	close_soft();
	puts("kept");
	return 0;
}
