/* mlx5's direct verbs: a program that writes a request into the ring itself, rings itself and reads the completion itself,
 * as UCX and DPDK do; and what the device says of itself. */
#include "common.h"
#include <infiniband/mlx5dv.h>
#include <dlfcn.h>
#include <endian.h>

static volatile struct mlx5_cqe64 *entry(struct mlx5dv_cq *cq, uint32_t index)
{
	char *at = (char *)cq->buf + (size_t)(index & (cq->cqe_cnt - 1)) * cq->cqe_size;
	return (volatile struct mlx5_cqe64 *)(at + cq->cqe_size - 64);
}

/* Writes an RDMA write of eight bytes as the request at `index`, and rings for it by eight bytes. */
static void post_by_hand(struct mlx5dv_qp *dv, struct ibv_qp *qp, uint16_t index, uint64_t from, uint64_t to)
{
	char *at = (char *)dv->sq.buf + (size_t)(index & (dv->sq.wqe_cnt - 1)) * dv->sq.stride;
	struct mlx5_wqe_ctrl_seg *control = (void *)at;
	struct mlx5_wqe_raddr_seg *remote = (void *)(control + 1);
	struct mlx5_wqe_data_seg *data = (void *)(remote + 1);
	mlx5dv_set_ctrl_seg(control, index, MLX5_OPCODE_RDMA_WRITE, 0, qp->qp_num, MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
	remote->raddr = htobe64(to);
	remote->rkey = htobe32(mr->rkey);
	remote->reserved = 0;
	mlx5dv_set_data_seg(data, 8, mr->lkey, from);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	dv->dbrec[MLX5_SND_DBR] = htobe32((uint16_t)(index + 1));
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	/* The halves of a register take turns. */
	*(volatile uint64_t *)((char *)dv->bf.reg + (index & 1 ? dv->bf.size : 0)) = *(uint64_t *)control;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Waits until the device has written the CQE at a counter. */
static volatile struct mlx5_cqe64 *written(struct mlx5dv_cq *dv, uint32_t index)
{
	volatile struct mlx5_cqe64 *cqe = entry(dv, index);
	int owner = !!(index & dv->cqe_cnt);
	while (mlx5dv_get_cqe_opcode((struct mlx5_cqe64 *)cqe) == MLX5_CQE_INVALID ||
	       (cqe->op_own & 1) != owner)
		sched_yield();
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return cqe;
}

static void wait_by_hand(struct mlx5dv_cq *dv, uint32_t index, struct ibv_qp *qp)
{
	volatile struct mlx5_cqe64 *cqe = written(dv, index);
	CHECK(mlx5dv_get_cqe_opcode((struct mlx5_cqe64 *)cqe) == MLX5_CQE_REQ);
	CHECK((be32toh(cqe->sop_drop_qpn) & 0xffffff) == qp->qp_num && be16toh(cqe->wqe_counter) == (uint16_t)index);
	dv->dbrec[0] = htobe32((index + 1) & 0xffffff);
}

static void rings(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0), *from;
	struct ibv_qp *qp = make_qp(cq, 16, 0);
	struct mlx5dv_qp dv_qp = { .comp_mask = MLX5DV_QP_MASK_UAR_MMAP_OFFSET };
	struct mlx5dv_cq dv_cq;
	struct mlx5dv_pd dv_pd;
	struct mlx5dv_obj obj = { .qp = { qp, &dv_qp }, .cq = { cq, &dv_cq }, .pd = { pd, &dv_pd } };
	void *cookie;
	uint32_t i;

	connect_to_itself(qp);
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_PD) == 0);
	CHECK(dv_qp.sq.buf && dv_qp.sq.stride == 64 && dv_qp.sq.wqe_cnt >= 16 && dv_qp.bf.reg && dv_qp.dbrec);
	CHECK(dv_qp.rq.buf && dv_qp.rq.wqe_cnt >= 16 && dv_qp.comp_mask == 0);
	CHECK(dv_cq.buf && dv_cq.dbrec && dv_cq.cqe_size == 64 && dv_cq.cqe_cnt == (uint32_t)cq->cqe + 1 && dv_cq.cqn);
	CHECK(dv_pd.pdn);
	/* More than one lap of both rings. */
	for (i = 0; i < 3 * dv_cq.cqe_cnt; i++) {
		snprintf(buffer, 16, "%u", i);
		/* Armed by the verb, which has to know what was polled by hand. */
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		post_by_hand(&dv_qp, qp, i, (uintptr_t)buffer, (uintptr_t)buffer + 1024);
		CHECK(ibv_get_cq_event(channel, &from, &cookie) == 0 && from == cq);
		wait_by_hand(&dv_cq, i, qp);
		CHECK(strtoul(buffer + 1024, NULL, 10) == i);
	}
	ibv_ack_cq_events(cq, i);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

/* Extended polls of a queue whose ring the program knows. `ibv_end_poll` gives all entries back.
 * Arming between start and end does not go back to the consumer index in the record, which is
 * behind then. */
static void extended_polls(void)
{
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	struct ibv_qp *qp = make_qp(ibv_cq_ex_to_cq(cq), 16, 0);
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buffer + 1024, mr->rkey } }, *bad;
	struct mlx5dv_cq dv;
	struct mlx5dv_obj obj = { .cq = { ibv_cq_ex_to_cq(cq), &dv } };
	uint32_t i, j, run = 3;

	connect_to_itself(qp);
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ) == 0);
	for (i = 0; i < 3 * dv.cqe_cnt; i += run) {
		for (j = i; j < i + run; j++) {
			wr.wr_id = j;
			CHECK(ibv_post_send(qp, &wr, &bad) == 0);
			written(&dv, j);
		}
		CHECK(ibv_start_poll(cq, &attr) == 0 && cq->wr_id == i);
		for (j = i + 1; j < i + run; j++) {
			CHECK(ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0) == 0);
			CHECK(ibv_next_poll(cq) == 0 && cq->wr_id == j && cq->status == IBV_WC_SUCCESS);
			CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE && ibv_wc_read_qp_num(cq) == qp->qp_num);
		}
		CHECK(ibv_next_poll(cq) == ENOENT);
		ibv_end_poll(cq);
		CHECK(be32toh(dv.dbrec[0]) == i + run);
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

static void work_queues(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 16, .max_sge = 2, .pd = pd, .cq = cq };
	struct ibv_wq *wq = ibv_create_wq(context, &init);
	struct mlx5dv_rwq dv = { .comp_mask = ~0ull };
	struct mlx5dv_obj obj = { .rwq = { wq, &dv } };

	CHECK(cq && wq && mlx5dv_init_obj(&obj, MLX5DV_OBJ_RWQ) == 0);
	CHECK(dv.buf && dv.dbrec && dv.wqe_cnt == 16 && dv.stride == 32 && dv.comp_mask == 0);
	CHECK(ibv_destroy_wq(wq) == 0 && ibv_destroy_cq(cq) == 0);
}

/* The device may compress the completions of twelve messages. They are polled like any others. */
static void compressed_completions(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 64 };
	struct mlx5dv_cq_init_attr own = { .comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE };
	struct mlx5dv_context caps = { .comp_mask = MLX5DV_CONTEXT_MASK_CQE_COMPRESION };
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	uint32_t i, received = 0, sent = 0;

	CHECK(mlx5dv_query_device(context, &caps) == 0 && caps.cqe_comp_caps.max_num > 0);
	own.cqe_comp_res_format = 3;
	CHECK(mlx5dv_create_cq(context, &init, &own) == NULL && errno == EINVAL);
	own.cqe_comp_res_format = MLX5DV_CQE_RES_FORMAT_HASH;
	cq = ibv_cq_ex_to_cq(mlx5dv_create_cq(context, &init, &own));
	CHECK(cq);
	qp = make_qp(cq, 16, 0);
	connect_to_itself(qp);
	for (i = 0; i < 12; i++) {
		struct ibv_sge into = { (uintptr_t)buffer + 2048, 512, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &into, .num_sge = 1 }, *bad;
		CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	}
	{
		struct ibv_sge from[12];
		struct ibv_send_wr wr[12], *bad;
		for (i = 0; i < 12; i++) {
			from[i] = (struct ibv_sge){ (uintptr_t)buffer, 100 + i, mr->lkey };
			wr[i] = (struct ibv_send_wr){ .wr_id = 100 + i, .next = i < 11 ? &wr[i + 1] : NULL, .sg_list = &from[i],
				.num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
		}
		CHECK(ibv_post_send(qp, wr, &bad) == 0);
	}
	while (received + sent < 24) {
		int found = ibv_poll_cq(cq, 1, &wc);
		CHECK(found >= 0);
		if (found == 0)
			continue;
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_RECV) {
			CHECK(wc.wr_id == received && wc.byte_len == 100 + received);
			received++;
		} else {
			CHECK(wc.wr_id == 100 + sent);
			sent++;
		}
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

/* Receives of a striding queue begin with a link; what the device does not have is refused. */
static void striding_work_queues(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq };
	struct mlx5dv_wq_init_attr own = { .comp_mask = MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ,
		.striding_rq_attrs = { .single_stride_log_num_of_bytes = 7, .single_wqe_log_num_of_strides = 5 } };
	struct ibv_wq *wq = mlx5dv_create_wq(context, &init, &own);
	struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
	struct ibv_sge sge = { .addr = 0x12345678, .length = 4096, .lkey = 0x99 };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct mlx5dv_rwq dv = { 0 };
	struct mlx5dv_obj obj = { .rwq = { wq, &dv } };
	const struct mlx5_mprq_wqe *wqe;

	CHECK(cq && wq && mlx5dv_init_obj(&obj, MLX5DV_OBJ_RWQ) == 0);
	CHECK(dv.wqe_cnt == 4 && dv.stride == sizeof(*wqe));
	wqe = dv.buf;
	CHECK(ibv_modify_wq(wq, &ready) == 0 && ibv_post_wq_recv(wq, &wr, &bad) == 0);
	CHECK(be32toh(wqe->dseg.byte_count) == 4096 && be32toh(wqe->dseg.lkey) == 0x99);
	CHECK(be64toh(wqe->dseg.addr) == 0x12345678 && be32toh(dv.dbrec[0]) == 1);
	CHECK(ibv_destroy_wq(wq) == 0);
	own.striding_rq_attrs.single_stride_log_num_of_bytes = 14;
	CHECK(mlx5dv_create_wq(context, &init, &own) == NULL && errno == EINVAL);
	own.comp_mask = 2;
	CHECK(mlx5dv_create_wq(context, &init, &own) == NULL && errno == EINVAL);
	CHECK(ibv_destroy_cq(cq) == 0);
}

static void shared_receives(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 15, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct mlx5dv_srq dv = { .comp_mask = MLX5DV_SRQ_MASK_SRQN };
	struct mlx5dv_obj obj = { .srq = { srq, &dv } };
	uint32_t i;

	CHECK(srq && mlx5dv_init_obj(&obj, MLX5DV_OBJ_SRQ) == 0);
	CHECK(dv.buf && dv.dbrec && dv.stride >= 32 && dv.head == 0 && dv.tail >= 15);
	CHECK(dv.comp_mask == MLX5DV_SRQ_MASK_SRQN && ibv_get_srq_num(srq, &i) == 0 && dv.srqn == i);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* What is filled in has zeroes between its fields, and nothing that was in the library's memory. */
static void bytes_between_fields(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 15, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	struct {
		struct mlx5dv_qp qp;
		struct mlx5dv_cq cq;
		struct mlx5dv_srq srq;
		struct mlx5dv_pd pd;
		struct mlx5dv_context context;
	} dv;
	struct mlx5dv_obj obj = {
		.qp = { qp, &dv.qp }, .cq = { cq, &dv.cq }, .srq = { srq, &dv.srq }, .pd = { pd, &dv.pd },
	};

	memset(&dv, 0xff, sizeof dv);
	dv.qp.comp_mask = dv.srq.comp_mask = dv.context.comp_mask = 0;
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ | MLX5DV_OBJ_PD) == 0);
	are_zero(&dv.qp, END(struct mlx5dv_qp, bf.size), offsetof(struct mlx5dv_qp, comp_mask));
	are_zero(&dv.cq, END(struct mlx5dv_cq, cqn), offsetof(struct mlx5dv_cq, comp_mask));
	are_zero(&dv.srq, END(struct mlx5dv_srq, tail), offsetof(struct mlx5dv_srq, comp_mask));
	are_zero(&dv.pd, END(struct mlx5dv_pd, pdn), offsetof(struct mlx5dv_pd, comp_mask));
	CHECK(mlx5dv_query_device(context, &dv.context) == 0);
	are_zero(&dv.context, END(struct mlx5dv_context, version), offsetof(struct mlx5dv_context, flags));
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_srq(srq) == 0);
}

static void memory_and_addresses(void)
{
	struct ibv_alloc_dm_attr dm_attr = { .length = 128 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	struct mlx5dv_steering_anchor_attr anchor = { .ft_type = MLX5DV_FLOW_TABLE_TYPE_NIC_RX };
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 3, .hop_limit = 9 } };
	struct ibv_ah *ah;
	struct mlx5dv_dm dv_dm;
	struct mlx5dv_ah dv_ah;
	struct mlx5dv_obj obj = { .dm = { dm, &dv_dm }, .ah = { NULL, &dv_ah } };

	CHECK(ibv_query_gid(context, 1, 3, &to.grh.dgid) == 0);
	ah = ibv_create_ah(pd, &to);
	obj.ah.in = ah;
	CHECK(dm && ah && mlx5dv_init_obj(&obj, MLX5DV_OBJ_DM | MLX5DV_OBJ_AH) == 0);
	CHECK(dv_dm.buf && dv_dm.length == 128);
	CHECK(dv_ah.av->hop_limit == 9 && memcmp(dv_ah.av->rgid, &to.grh.dgid, 16) == 0);
	/* The device has no operations on its memory, and its kernel no anchors. */
	errno = 0;
	CHECK(!mlx5dv_dm_map_op_addr(dm, 0) && errno == EOPNOTSUPP);
	CHECK(!mlx5dv_create_steering_anchor(context, &anchor) && errno == EPROTONOSUPPORT);
	anchor.comp_mask = 1;
	CHECK(!mlx5dv_create_steering_anchor(context, &anchor) && errno == EOPNOTSUPP);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_free_dm(dm) == 0);
}

/* Fields that the installed header may not have: READs of dynamic connections, behind the 152 bytes that rdma-core 44 knows. */
static void newer_fields(void)
{
	union {
		struct mlx5dv_context known;
		uint64_t words[64];
	} caps;
	int i;

	for (i = 0; i < 2; i++) {
		memset(&caps, 0xa5, sizeof caps);
		caps.known.comp_mask = i << 14;
		CHECK(mlx5dv_query_device(context, &caps.known) == 0 && caps.known.comp_mask == (uint64_t)i << 14);
		CHECK(i ? caps.words[19] == 16 && caps.words[20] == 16 : caps.words[19] == 0xa5a5a5a5a5a5a5a5);
		CHECK(caps.words[21] == 0xa5a5a5a5a5a5a5a5);
	}
}

static void what_the_device_says(void)
{
	struct mlx5dv_context dv = { .comp_mask = MLX5DV_CONTEXT_MASK_CQE_COMPRESION | MLX5DV_CONTEXT_MASK_DYN_BFREGS |
		MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE | MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD };
	struct mlx5dv_clock_info clock;
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_context *devx;
	struct mlx5dv_cq_init_attr own = { .comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE, .cqe_size = 128 };
	struct mlx5dv_cq dv_cq;
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 4 };
	struct ibv_cq_ex *cq;
	struct mlx5dv_obj obj = { .cq = { NULL, &dv_cq } };

	CHECK(mlx5dv_is_supported(context->device));
	CHECK(mlx5dv_query_device(context, &dv) == 0 && dv.flags & MLX5DV_CONTEXT_FLAGS_CQE_V1);
	newer_fields();
	CHECK(dv.comp_mask & MLX5DV_CONTEXT_MASK_DYN_BFREGS && dv.max_dynamic_bfregs > 0);
	CHECK(!(dv.comp_mask & MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD));
	CHECK(mlx5dv_get_clock_info(context, &clock) == 0 && clock.mult && clock.mask);
	CHECK(mlx5dv_ts_to_ns(&clock, clock.last_cycles) >= clock.nsec);
	devx = mlx5dv_open_device(context->device, &attr);
	CHECK(devx && ibv_close_device(devx) == 0);
	cq = mlx5dv_create_cq(context, &cq_attr, &own);
	CHECK(cq);
	obj.cq.in = ibv_cq_ex_to_cq(cq);
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ) == 0 && dv_cq.cqe_size == 128);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	own.cqe_size = 96;
	CHECK(mlx5dv_create_cq(context, &cq_attr, &own) == NULL && errno == EINVAL);
}

/* Functions that return a pointer return NULL on an error, and not an errno. */
static void what_is_not_there(void)
{
	static const char *const names[] = { "mlx5dv_devx_obj_import", "mlx5dv_devx_umem_import", "mlx5dv_var_import",
		"mlx5dv_dr_table_create", "mlx5dv_dr_domain_create" };
	struct ibv_mr *(*reg)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, int) =
		dlsym(RTLD_DEFAULT, "mlx5dv_reg_dmabuf_mr");
	unsigned i;

	for (i = 0; i < sizeof names / sizeof *names; i++) {
		void *(*function)(void *, void *) = dlsym(RTLD_DEFAULT, names[i]);
		errno = 0;
		CHECK(function && function(NULL, NULL) == NULL && errno == EOPNOTSUPP);
	}
	CHECK(reg && reg(pd, 0, 0, 0, -1, 0, 0) == NULL && errno == EBADF);
	CHECK(reg(pd, 0, 0, 0, -1, 0, 1) == NULL && errno == EOPNOTSUPP);
}

/* A request that the program encodes itself, to write eight bytes. The index and the number in it are not the queue's. */
static void encode_write(char *wqe, uint64_t from, uint64_t to)
{
	struct mlx5_wqe_ctrl_seg *control = (void *)wqe;
	struct mlx5_wqe_raddr_seg *remote = (void *)(control + 1);
	mlx5dv_set_ctrl_seg(control, 0x7777, MLX5_OPCODE_RDMA_WRITE, 0, 0x123456, MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
	remote->raddr = htobe64(to);
	remote->rkey = htobe32(mr->rkey);
	remote->reserved = 0;
	mlx5dv_set_data_seg((void *)(remote + 1), 8, mr->lkey, from);
}

/* Id and opcode of the next completion, which is a success, by an extended poll. */
static struct ibv_wc extended_wait_for(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_wc wc;

	while (ibv_start_poll(cq, &attr) == ENOENT)
		;
	wc.wr_id = cq->wr_id;
	wc.status = cq->status;
	wc.opcode = ibv_wc_read_opcode(cq);
	ibv_end_poll(cq);
	return wc;
}

static void encoded_requests(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 16 };
	struct ibv_cq_ex *polled = ibv_create_cq_ex(context, &init);
	struct ibv_cq *cq = ibv_cq_ex_to_cq(polled);
	struct ibv_qp_init_attr_ex attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
		.cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct mlx5dv_qp_init_attr own = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
		.send_ops_flags = MLX5DV_QP_EX_WITH_RAW_WQE };
	_Alignas(16) char wqe[64];
	struct mlx5dv_qp_ex *direct;
	struct ibv_qp_ex *ex;
	struct ibv_qp *qp;
	unsigned lap, i;

	qp = mlx5dv_create_qp(context, &attr, &own);
	CHECK(cq && qp);
	connect_to_itself(qp);
	ex = ibv_qp_to_qp_ex(qp);
	direct = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
	CHECK(ex && direct);
	for (lap = 0; lap < 40; lap++) {
		memset(buffer, 0, 64);
		memcpy(buffer, "encoded requests", 16);
		ibv_wr_start(ex);
		encode_write(wqe, (uintptr_t)buffer, (uintptr_t)buffer + 16);
		ex->wr_id = 3 * lap;
		mlx5dv_wr_raw_wqe(direct, wqe);
		ex->wr_id = 3 * lap + 1;
		ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 32);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
		encode_write(wqe, (uintptr_t)buffer + 8, (uintptr_t)buffer + 24);
		ex->wr_id = 3 * lap + 2;
		mlx5dv_wr_raw_wqe(direct, wqe);
		CHECK(ibv_wr_complete(ex) == 0);
		for (i = 0; i < 3; i++) {
			struct ibv_wc wc = lap & 1 ? extended_wait_for(polled) : wait_for(cq);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 3 * lap + i);
			CHECK(wc.opcode == (i == 1 ? IBV_WC_RDMA_WRITE : IBV_WC_DRIVER2));
		}
		CHECK(!memcmp(buffer + 16, "encoded requestsencoded ", 24));
	}
	/* One that is longer than it says cannot be known; one of no length is refused, and so is what no device here has. */
	memset(wqe, 0, sizeof wqe);
	ibv_wr_start(ex);
	mlx5dv_wr_raw_wqe(direct, wqe);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	mlx5dv_wr_memcpy(direct, 0, 0, 0, 0, 0);
	CHECK(ibv_wr_complete(ex) == EOPNOTSUPP);
	own.send_ops_flags = MLX5DV_QP_EX_WITH_MEMCPY;
	CHECK(!mlx5dv_create_qp(context, &attr, &own) && errno == EOPNOTSUPP);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

/* Both ends of dynamic connections: masks and errnos as mlx5_ib has them, the target's late number, requests that
 * name it. */
static void dynamic_connections(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	struct ibv_qp_init_attr_ex attr = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_DRIVER, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD };
	struct mlx5dv_qp_init_attr own = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = 0x1122334455667788 } };
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_sge sge = { .addr = (uintptr_t)buffer + 64, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 77, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *unsent;
	struct ibv_qp_init_attr granted;
	struct mlx5dv_qp_ex *direct;
	struct ibv_qp *dct, *dci;
	struct ibv_qp_ex *ex;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	unsigned key;

	attr.srq = NULL;
	CHECK(!mlx5dv_create_qp(context, &attr, &own) && errno == EINVAL);
	attr.srq = srq;
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	CHECK(!mlx5dv_create_qp(context, &attr, &own) && errno == EINVAL);
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	attr.qp_type = IBV_QPT_RC;
	CHECK(!mlx5dv_create_qp(context, &attr, &own) && errno == EINVAL);
	attr.qp_type = IBV_QPT_DRIVER;
	dct = mlx5dv_create_qp(context, &attr, &own);
	CHECK(cq && srq && dct && dct->qp_num == 0);
	CHECK(ibv_query_qp(dct, &to, IBV_QP_STATE, &granted) == EINVAL);
	CHECK(ibv_modify_qp(dct, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT) == EINVAL);
	CHECK(ibv_modify_qp(dct, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	memset(&to, 0, sizeof to);
	to.qp_state = IBV_QPS_RTR;
	to.path_mtu = IBV_MTU_1024;
	to.min_rnr_timer = 1;
	to.ah_attr.port_num = 1;
	to.ah_attr.is_global = 1;
	to.ah_attr.grh.sgid_index = 3;
	to.ah_attr.grh.hop_limit = 1;
	CHECK(ibv_query_gid(context, 1, 3, &to.ah_attr.grh.dgid) == 0);
	ah = ibv_create_ah(pd, &to.ah_attr);
	CHECK(ah && ibv_modify_qp(dct, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER) == 0);
	CHECK(dct->qp_num != 0 && dct->state == IBV_QPS_RTR);
	CHECK(ibv_query_qp(dct, &to, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS, &granted) == 0);
	CHECK(to.qp_state == IBV_QPS_RTR && to.qp_access_flags == IBV_ACCESS_REMOTE_WRITE);
	CHECK(ibv_query_qp(dct, &to, IBV_QP_SQ_PSN, &granted) == EINVAL);
	to.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(dct, &to, IBV_QP_STATE) == EINVAL);

	own.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI;
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
	attr.cap.max_send_wr = 4;
	attr.cap.max_send_sge = 1;
	dci = mlx5dv_create_qp(context, &attr, &own);
	CHECK(dci);
	memset(&to, 0, sizeof to);
	to.qp_state = IBV_QPS_INIT;
	to.port_num = 1;
	CHECK(ibv_modify_qp(dci, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == EINVAL);
	CHECK(ibv_modify_qp(dci, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT) == 0);
	to.qp_state = IBV_QPS_RTR;
	to.path_mtu = IBV_MTU_1024;
	CHECK(ibv_modify_qp(dci, &to, IBV_QP_STATE | IBV_QP_PATH_MTU) == 0);
	to.qp_state = IBV_QPS_RTS;
	to.timeout = 10;
	to.retry_cnt = 1;
	to.rnr_retry = 7;
	to.max_rd_atomic = 1;
	CHECK(ibv_modify_qp(dci, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	/* ibv_post_send cannot name a target. */
	CHECK(ibv_post_send(dci, &send, &unsent) == EINVAL && unsent == &send);

	ex = ibv_qp_to_qp_ex(dci);
	direct = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
	CHECK(ibv_post_srq_recv(srq, &receive, &bad) == 0);
	memcpy(buffer, "to a target", 12);
	/* With the key, in a stream, which this initiator does not have; without a target; with another key. */
	for (key = 0; key < 3; key++) {
		ibv_wr_start(ex);
		ex->wr_id = key;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(ex);
		if (key == 0)
			mlx5dv_wr_set_dc_addr_stream(direct, ah, dct->qp_num, 0x1122334455667788, 7);
		else if (key == 2)
			mlx5dv_wr_set_dc_addr(direct, ah, dct->qp_num, 0x1122334455667788 + key);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 12);
		CHECK(ibv_wr_complete(ex) == (key == 1 ? EINVAL : 0));
		if (key == 0) {
			wc = wait_for(cq);
			if (wc.wr_id == 77)
				CHECK(wc.src_qp == dci->qp_num && wc.qp_num == dct->qp_num && wc.byte_len == 12);
			wc = wait_for(cq);
			CHECK(wc.status == IBV_WC_SUCCESS && !strcmp(buffer + 64, "to a target"));
		}
	}
	wc = wait_for(cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_RETRY_EXC_ERR);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_destroy_qp(dci) == 0 && ibv_destroy_qp(dct) == 0 && ibv_destroy_ah(ah) == 0);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
}

/* Packets to be segmented: each header is copied, so the program may change it right after the call. */
static void segmented_packets(void)
{
	unsigned char header[54];
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
		.cap = { .max_send_wr = 8, .max_send_sge = 1, .max_inline_data = sizeof header } };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_ex *ex = qp ? ibv_qp_to_qp_ex(qp) : NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct mlx5dv_qp dv = { .comp_mask = 0 };
	struct mlx5dv_obj object = { .qp = { .in = qp, .out = &dv } };
	char *at;

	CHECK(ex && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == 0);
	for (attr.qp_state = IBV_QPS_RTR; attr.qp_state <= IBV_QPS_RTS; attr.qp_state++)
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	CHECK(mlx5dv_init_obj(&object, MLX5DV_OBJ_QP) == 0);
	ibv_wr_start(ex);
	for (int packet = 1; packet <= 2; packet++) {
		memset(header, packet, sizeof header);
		ibv_wr_send_tso(ex, header, sizeof header - packet, 100);
		memset(header, 0xff, sizeof header);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 200);
	}
	CHECK(ibv_wr_complete(ex) == 0);
	at = dv.sq.buf;
	for (int packet = 1; packet <= 2; packet++) {
		struct mlx5_wqe_ctrl_seg *control = (void *)at;
		struct mlx5_wqe_eth_seg *segment = (void *)(control + 1);
		memset(header, packet, sizeof header);
		CHECK(control->opmod_idx_opcode >> 24 == MLX5_OPCODE_TSO && be16toh(segment->mss) == 100);
		CHECK(be16toh(segment->inline_hdr_sz) == sizeof header - packet);
		CHECK(memcmp(segment->inline_hdr_start, header, sizeof header - packet) == 0);
		at += (((be32toh(control->qpn_ds) & 0x3f) + 3) & ~3u) * 16;
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(void)
{
	alarm(300);
	open_soft();
	rings();
	extended_polls();
	work_queues();
	striding_work_queues();
	compressed_completions();
	shared_receives();
	bytes_between_fields();
	memory_and_addresses();
	what_the_device_says();
	what_is_not_there();
	encoded_requests();
	segmented_packets();
	dynamic_connections();
	close_soft();
	puts("kept");
	return 0;
}
