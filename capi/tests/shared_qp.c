/* An XRC target that two contexts share: opened by number, changed by either, its events for both. */
#include "common.h"

static struct ibv_context *other;

static struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *opened;
	CHECK(list && list[0]);
	opened = ibv_open_device(list[0]);
	CHECK(opened);
	ibv_free_device_list(list);
	return opened;
}

static struct ibv_xrcd *open_domain(struct ibv_context *of, int fd)
{
	struct ibv_xrcd_init_attr attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd,
		.oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(of, &attr);
	CHECK(xrcd);
	return xrcd;
}

static struct ibv_qp *make_target(struct ibv_xrcd *xrcd, void *cookie)
{
	struct ibv_qp_init_attr_ex attr = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.xrcd = xrcd, .qp_context = cookie };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp);
	return qp;
}

static struct ibv_qp_open_attr wanted(struct ibv_xrcd *xrcd, uint32_t number, void *cookie)
{
	return (struct ibv_qp_open_attr){ .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
		IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE, .qp_num = number, .xrcd = xrcd,
		.qp_context = cookie, .qp_type = IBV_QPT_XRC_RECV };
}

static void refusals(struct ibv_xrcd *xrcd, uint32_t number)
{
	struct ibv_qp_open_attr attr = wanted(xrcd, number, NULL);
	attr.comp_mask |= IBV_QP_OPEN_ATTR_RESERVED;
	CHECK(!ibv_open_qp(other, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD;
	CHECK(!ibv_open_qp(other, &attr) && errno == EINVAL);
	attr = wanted(xrcd, number, NULL);
	attr.qp_type = IBV_QPT_RC;
	CHECK(!ibv_open_qp(other, &attr) && errno == EINVAL);
	attr = wanted(xrcd, number + 1000, NULL);
	CHECK(!ibv_open_qp(other, &attr) && errno == EINVAL);
	/* A domain of another context. */
	attr = wanted(xrcd, number, NULL);
	CHECK(!ibv_open_qp(context, &attr) && errno == EINVAL);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(init.qp_context == qp->qp_context && init.qp_type == IBV_QPT_XRC_RECV && qp->state == attr.qp_state);
	return attr.qp_state;
}

static void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

static void to_rtr(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer };
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.sgid_index = 3;
	attr.ah_attr.grh.hop_limit = 1;
	CHECK(ibv_query_gid(context, 1, 3, &attr.ah_attr.grh.dgid) == 0);
	if (qp->qp_type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static struct ibv_qp *make_initiator(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = { .send_cq = cq, .qp_type = IBV_QPT_XRC_SEND, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD, .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp);
	return qp;
}

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static struct ibv_srq *make_srq(struct ibv_xrcd *xrcd, struct ibv_cq *cq, uint32_t *number)
{
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd,
		.xrcd = xrcd, .cq = cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
		IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *srq = ibv_create_srq_ex(context, &attr);
	CHECK(srq && ibv_get_srq_num(srq, number) == 0);
	return srq;
}

static uint32_t srq_number;

static enum ibv_wc_status write_there(struct ibv_qp *from, struct ibv_cq *cq, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)buffer + 64;
	wr.wr.rdma.rkey = rkey;
	wr.qp_type.xrc.remote_srqn = srq_number;
	CHECK(ibv_post_send(from, &wr, &bad) == 0);
	return wait_for(cq).status;
}

/* Waits for the event in a context; it names that context's own handle of the target. */
static void expect_event(struct ibv_context *in, enum ibv_event_type type, struct ibv_qp *about)
{
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(in, &event) == 0);
	CHECK(event.event_type == type && event.element.qp == about);
	ibv_ack_async_event(&event);
}

int main(void)
{
	struct ibv_xrcd *first, *second;
	struct ibv_qp *made, *opened, *again, *initiator;
	struct ibv_qp_open_attr attr;
	struct ibv_srq *srq;
	struct ibv_cq *cq;
	uint32_t number;
	int fd = memfd_create("domain", 0), cookies[3];

	open_soft();
	other = open_first();
	first = open_domain(context, fd);
	second = open_domain(other, fd);
	made = make_target(first, &cookies[0]);
	number = made->qp_num;
	refusals(second, number);

	attr = wanted(second, number, &cookies[1]);
	opened = ibv_open_qp(other, &attr);
	CHECK(opened && opened->qp_num == number && opened->context == other && opened->qp_context == &cookies[1]);
	CHECK(opened->state == IBV_QPS_UNKNOWN && !opened->pd && !opened->send_cq && !opened->recv_cq && !opened->srq);
	/* A second time in the context that has made it. */
	attr = wanted(first, number, &cookies[2]);
	again = ibv_open_qp(context, &attr);
	CHECK(again && again != made && again->qp_num == number);
	CHECK(ibv_close_xrcd(second) == EBUSY);

	/* Each opener continues from the state that another one has set. */
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	srq = make_srq(first, cq, &srq_number);
	initiator = make_initiator(cq);
	CHECK(state_of(opened) == IBV_QPS_RESET);
	to_init(opened);
	CHECK(state_of(made) == IBV_QPS_INIT);
	to_rtr(made, initiator->qp_num);
	CHECK(state_of(again) == IBV_QPS_RTR && state_of(opened) == IBV_QPS_RTR);
	to_init(initiator);
	to_rtr(initiator, number);
	to_rts(initiator);

	/* The target receives as long as one context has it open, even without its creator. */
	CHECK(write_there(initiator, cq, mr->rkey) == IBV_WC_SUCCESS);
	expect_event(other, IBV_EVENT_COMM_EST, opened);
	/* Two handles in this context, two events. */
	expect_event(context, IBV_EVENT_COMM_EST, made);
	expect_event(context, IBV_EVENT_COMM_EST, again);
	CHECK(ibv_destroy_qp(again) == 0 && ibv_destroy_qp(made) == 0);
	CHECK(write_there(initiator, cq, mr->rkey) == IBV_WC_SUCCESS);
	attr = wanted(first, number, &cookies[2]);
	again = ibv_open_qp(context, &attr);
	CHECK(again && state_of(again) == IBV_QPS_RTR);

	CHECK(write_there(initiator, cq, mr->rkey + 0x100) == IBV_WC_REM_ACCESS_ERR);
	expect_event(other, IBV_EVENT_QP_ACCESS_ERR, opened);
	expect_event(context, IBV_EVENT_QP_ACCESS_ERR, again);

	CHECK(ibv_destroy_qp(opened) == 0 && ibv_destroy_qp(again) == 0);
	CHECK(!ibv_open_qp(context, &attr) && errno == EINVAL);
	CHECK(ibv_destroy_qp(initiator) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_close_xrcd(second) == 0 && ibv_close_xrcd(first) == 0);
	CHECK(ibv_close_device(other) == 0);
	close(fd);
	close_soft();
	puts("kept");
	return 0;
}
