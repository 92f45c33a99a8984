/* Bits, flags and types that no verb knows, and objects that a verb does not take: each is refused with the errno of
 * rdma-core, and nothing is made or changed. */
#include "common.h"
#include <infiniband/mlx5dv.h>
#include <sys/resource.h>

#define REFUSES(call, number)                                                                        \
	do {                                                                                         \
		errno = 0;                                                                           \
		CHECK(!(call) && errno == (number));                                                 \
	} while (0)

static void completion_queues(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 4, .comp_mask = 1 << 2 };

	REFUSES(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = 1 << 2;
	REFUSES(ibv_create_cq_ex(context, &attr), EINVAL);
	/* Neither no domain nor one without a parent is a parent domain. */
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	REFUSES(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.parent_domain = pd;
	REFUSES(ibv_create_cq_ex(context, &attr), EINVAL);
}

static struct ibv_qp *create(struct ibv_cq *cq, int type, int flags, uint64_t operations)
{
	struct ibv_qp_init_attr_ex attr = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (flags ? IBV_QP_INIT_ATTR_CREATE_FLAGS : 0) |
			(operations ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.create_flags = flags, .send_ops_flags = operations,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

	if (type == IBV_QPT_XRC_SEND)
		attr.cap.max_recv_wr = 0;
	return ibv_create_qp_ex(context, &attr);
}

/* Which operations of ibv_wr_… each type of queue pair has (mlx5_qp_fill_wr_pfns of libmlx5). */
static void operations(struct ibv_cq *cq)
{
	static const struct { int type; uint64_t has; } types[] = {
		{ IBV_QPT_RC, 0x7ff & ~IBV_QP_EX_WITH_TSO },
		{ IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
			IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
			IBV_QP_EX_WITH_SEND_WITH_INV },
		{ IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM },
		{ IBV_QPT_XRC_SEND, 0x7ff & ~IBV_QP_EX_WITH_TSO },
		{ IBV_QPT_RAW_PACKET, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO },
	};
	unsigned i, bit;

	for (i = 0; i < sizeof types / sizeof *types; i++)
		for (bit = 0; bit < 11; bit++) {
			struct ibv_qp *qp;
			errno = 0;
			qp = create(cq, types[i].type, 0, 1 << bit);
			if (!qp && !(types[i].has & 1 << bit) && errno == EOPNOTSUPP)
				continue;
			if (!qp || !(types[i].has & 1 << bit))
				fprintf(stderr, "type %d, operation %u\n", types[i].type, bit);
			CHECK(qp && types[i].has & 1 << bit && ibv_destroy_qp(qp) == 0);
		}
}

static void queue_pairs(struct ibv_cq *cq)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp *qp = create(cq, IBV_QPT_RC, 0, 0);
	int bit;

	CHECK(qp);
	for (bit = 21; bit < 31; bit++)
		CHECK(bit == 25 || ibv_modify_qp(qp, &attr, IBV_QP_STATE | 1 << bit) == EOPNOTSUPP);
	/* Alternate paths are for InfiniBand ports, rate limits for queue pairs of frames. */
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ALT_PATH) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
	REFUSES(create(cq, 77, 0, 0), EINVAL);
	REFUSES(create(cq, 1, 0, 0), EINVAL);
	REFUSES(create(cq, IBV_QPT_RC, IBV_QP_CREATE_SCATTER_FCS, 0), EINVAL);
	REFUSES(create(cq, IBV_QPT_UD, IBV_QP_CREATE_CVLAN_STRIPPING, 0), EINVAL);
	REFUSES(create(cq, IBV_QPT_RAW_PACKET, 1 << 20, 0), EINVAL);
}

static void shared_receives(struct ibv_cq *cq)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);
	struct ibv_srq_attr change = { .max_wr = 8 };
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
		.oflags = O_CREAT };
	struct ibv_srq_init_attr_ex extended = { .attr = { .max_wr = 4, .max_sge = 1 }, .pd = pd, .cq = cq,
		.srq_type = IBV_SRQT_XRC, .comp_mask = 1 << 5 | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			IBV_SRQ_INIT_ATTR_CQ };

	/* No mlx5 resizes one (mlx5_ib_modify_srq of the kernel). */
	CHECK(srq && ibv_modify_srq(srq, &change, IBV_SRQ_MAX_WR) == EINVAL && ibv_destroy_srq(srq) == 0);
	/* A mask that lacks needed bits has the unknown one first. */
	REFUSES(ibv_create_srq_ex(context, &extended), EOPNOTSUPP);
	extended.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
	extended.xrcd = ibv_open_xrcd(context, &domain);
	CHECK(extended.xrcd);
	REFUSES(ibv_create_srq_ex(context, &extended), EOPNOTSUPP);
	CHECK(ibv_close_xrcd(extended.xrcd) == 0);
	/* A tag matching queue needs an extended completion queue; then libibverbs looks at the mask. */
	extended.srq_type = IBV_SRQT_TM;
	extended.comp_mask &= ~IBV_SRQ_INIT_ATTR_XRCD;
	extended.xrcd = NULL;
	REFUSES(ibv_create_srq_ex(context, &extended), EINVAL);
	extended.cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &(struct ibv_cq_init_attr_ex){ .cqe = 4 }));
	REFUSES(ibv_create_srq_ex(context, &extended), EOPNOTSUPP);
	extended.comp_mask |= IBV_SRQ_INIT_ATTR_TM;
	extended.tm_cap.max_num_tags = extended.tm_cap.max_ops = 4;
	REFUSES(ibv_create_srq_ex(context, &extended), EOPNOTSUPP);
	CHECK(ibv_destroy_cq(extended.cq) == 0);
}

static void work_queues(struct ibv_cq *cq)
{
	struct ibv_wq_init_attr attr = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq,
		.comp_mask = 1 << 1 };
	struct ibv_wq_attr change = { .attr_mask = 1 << 3 | IBV_WQ_ATTR_STATE };
	struct ibv_wq *wq;

	REFUSES(ibv_create_wq(context, &attr), EINVAL);
	attr.comp_mask = 0;
	wq = ibv_create_wq(context, &attr);
	CHECK(wq && ibv_modify_wq(wq, &change) == EINVAL);
	change.attr_mask = 0;
	CHECK(ibv_modify_wq(wq, &change) == EINVAL);
	change.attr_mask = IBV_WQ_ATTR_CURR_STATE;
	change.curr_wq_state = IBV_WQS_RDY;
	CHECK(ibv_modify_wq(wq, &change) == EINVAL);
	change.curr_wq_state = IBV_WQS_RESET;
	CHECK(ibv_modify_wq(wq, &change) == 0);
	/* Flags change with and without the state; mlx5_ib_modify_wq of the kernel refuses padding. */
	change.wq_state = IBV_WQS_ERR;
	change.flags = change.flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING;
	change.attr_mask = IBV_WQ_ATTR_FLAGS;
	CHECK(ibv_modify_wq(wq, &change) == 0 && wq->state == IBV_WQS_RESET);
	change.attr_mask = IBV_WQ_ATTR_FLAGS | IBV_WQ_ATTR_STATE;
	change.wq_state = IBV_WQS_RDY;
	CHECK(ibv_modify_wq(wq, &change) == 0 && wq->state == IBV_WQS_RDY);
	change.flags_mask = 1 << 4;
	CHECK(ibv_modify_wq(wq, &change) == EOPNOTSUPP);
	change.flags_mask = IBV_WQ_FLAGS_PCI_WRITE_END_PADDING;
	CHECK(ibv_modify_wq(wq, &change) == EOPNOTSUPP);
	CHECK(ibv_destroy_wq(wq) == 0);
}

static void counters(void)
{
	struct ibv_counters_init_attr attr = { .comp_mask = 1 };
	struct ibv_counter_attach_attr attach = { .counter_desc = IBV_COUNTER_PACKETS, .comp_mask = 1 };
	struct ibv_counters *set;
	uint64_t value;

	REFUSES(ibv_create_counters(context, &attr), EOPNOTSUPP);
	attr.comp_mask = 0;
	set = ibv_create_counters(context, &attr);
	CHECK(set && ibv_attach_counters_point_flow(set, &attach, NULL) == EOPNOTSUPP);
	attach.comp_mask = 0;
	/* Counters are attached to rules that are still to be made. */
	CHECK(ibv_attach_counters_point_flow(set, &attach, (struct ibv_flow *)&attach) == ENOTSUP);
	CHECK(ibv_attach_counters_point_flow(set, &attach, NULL) == 0);
	CHECK(ibv_read_counters(set, &value, 1, 1 << 3) == EINVAL && ibv_destroy_counters(set) == 0);
}

static void device_memory(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	char bytes[64];

	CHECK(dm);
	REFUSES(ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 4090, bytes, sizeof bytes) == EFAULT);
	CHECK(ibv_memcpy_from_dm(bytes, dm, 4096, 4) == EFAULT);
	CHECK(ibv_memcpy_from_dm(bytes, dm, 8192, 0) == EFAULT && ibv_memcpy_to_dm(dm, 4096, bytes, 0) == 0);
	CHECK(ibv_free_dm(dm) == 0);
}

static void regions(void)
{
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };

	errno = 0;
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
	/* Rights without the flag that changes them. */
	errno = 0;
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == IBV_REREG_MR_ERR_INPUT);
	CHECK(errno == EINVAL && ibv_rereg_mr(mr, 0, NULL, NULL, 0, 1) == IBV_REREG_MR_ERR_INPUT);
	/* Only regions over memory of the program's are changed. */
	errno = 0;
	CHECK(null && ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 1) == IBV_REREG_MR_ERR_INPUT);
	CHECK(errno == EINVAL && ibv_dereg_mr(null) == 0);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 1, &sge, 1) == EINVAL);
	REFUSES(ibv_import_device(-1), EINVAL);
	REFUSES(ibv_import_device(12345), EINVAL);
}

/* Files that are no device: libibverbs asks whether it is a character device, and then for its number. */
static void other_files(void)
{
	int directory = open("/", O_RDONLY), null = open("/dev/null", O_RDWR), ends[2];

	CHECK(directory >= 0 && null >= 0 && pipe(ends) == 0);
	REFUSES(ibv_import_device(directory), EINVAL);
	REFUSES(ibv_import_device(ends[0]), EINVAL);
	REFUSES(ibv_import_device(null), ENODEV);
	/* They are still the program's. */
	CHECK(close(directory) == 0 && close(null) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* A process with as many files as it may have can import no device, and list none of the kernel. */
static void no_files(void)
{
	struct rlimit before, none;
	int file = open("/dev/null", O_RDONLY), number = 1;

	CHECK(file >= 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
	none = before;
	none.rlim_cur = 1;
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	REFUSES(ibv_import_device(file), EMFILE);
	CHECK(unsetenv("UVERBS_DEVICE") == 0);
	REFUSES(ibv_get_device_list(&number), EMFILE);
	CHECK(number == 0 && setenv("UVERBS_DEVICE", "soft", 1) == 0);
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0 && close(file) == 0);
}

/* What ibv_open_xrcd(3) says of O_CREAT and O_EXCL. */
static void xrc_domains(void)
{
	char path[] = "/tmp/uverbs-xrcd-XXXXXX";
	struct ibv_xrcd_init_attr attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS };
	struct ibv_xrcd *first, *second;

	attr.fd = mkstemp(path);
	CHECK(attr.fd >= 0 && unlink(path) == 0);
	REFUSES(ibv_open_xrcd(context, &attr), EAGAIN);
	attr.oflags = O_CREAT | O_EXCL;
	first = ibv_open_xrcd(context, &attr);
	CHECK(first);
	REFUSES(ibv_open_xrcd(context, &attr), EINVAL);
	attr.oflags = 0;
	second = ibv_open_xrcd(context, &attr);
	CHECK(second && ibv_close_xrcd(first) == 0 && ibv_close_xrcd(second) == 0);
	attr.comp_mask |= 1 << 2;
	REFUSES(ibv_open_xrcd(context, &attr), EOPNOTSUPP);
	close(attr.fd);
}

/* Flags that no query has, values that were not asked for, and options of a device that has none. */
static void queries(struct ibv_cq *cq)
{
	struct ibv_qp *qp = create(cq, IBV_QPT_RC, 0, 0);
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1000 };
	struct ibv_values_ex values = { 0 };
	struct ibv_ece ece = { .vendor_id = 1 };
	struct ibv_gid_entry entry;

	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 1) == EINVAL);
	CHECK(ibv_query_gid_table(context, &entry, 1, 1) == -EINVAL);
	CHECK(ibv_query_rt_values_ex(context, &values) == 0 && values.comp_mask == 0);
	CHECK(qp && ibv_set_ece(qp, &ece) == EINVAL && ibv_modify_qp_rate_limit(qp, &rate) == EINVAL);
	CHECK(ibv_query_ece(qp, &ece) == 0 && ece.vendor_id == 0x15b3 && ece.options == 0 && ece.comp_mask == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* A frame without data has no header: it is refused, and the queue pair goes on. */
static void frames(struct ibv_cq *cq)
{
	struct ibv_qp *qp = create(cq, IBV_QPT_RAW_PACKET, 0, 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_sge sge = { (uintptr_t)buffer, 64, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED },
		*bad = NULL;

	CHECK(qp && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == 0);
	for (attr.qp_state = IBV_QPS_RTR; attr.qp_state <= IBV_QPS_RTS; attr.qp_state++)
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.num_sge = 1;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0 && wait_for(cq).status == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void direct_completion_queues(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 4 };
	struct mlx5dv_cq_init_attr own = { .comp_mask = 1 << 3 };
	struct ibv_cq_ex *cq;

	REFUSES(mlx5dv_create_cq(context, &attr, &own), EINVAL);
	own.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
	REFUSES(mlx5dv_create_cq(context, &attr, &own), EINVAL);
	own.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_FLAGS;
	own.flags = 1 << 1;
	REFUSES(mlx5dv_create_cq(context, &attr, &own), EINVAL);
	own.flags = 0;
	cq = mlx5dv_create_cq(context, &attr, &own);
	CHECK(cq && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

static void direct_queues(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD, .cap = { 4, 4, 1, 1, 0 } };
	struct mlx5dv_qp_init_attr own = { .comp_mask = 1 << 5 };
	struct ibv_wq_init_attr receives = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq };
	struct mlx5dv_wq_init_attr strides = { .comp_mask = 1 << 1 };

	REFUSES(mlx5dv_create_qp(context, &attr, &own), EINVAL);
	own.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
	own.create_flags = 1 << 20;
	REFUSES(mlx5dv_create_qp(context, &attr, &own), EINVAL);
	REFUSES(mlx5dv_create_wq(context, &receives, &strides), EINVAL);
}

static void direct_objects(struct ibv_cq *cq)
{
	struct mlx5dv_context_attr attr = { .flags = 1 << 1 };
	struct mlx5dv_cq parts = { 0 };
	struct mlx5dv_obj objects = { .cq = { cq, &parts } };

	REFUSES(mlx5dv_open_device(context->device, &attr), EINVAL);
	attr.flags = 0;
	attr.comp_mask = 1 << 4;
	REFUSES(mlx5dv_open_device(context->device, &attr), EINVAL);
	CHECK(mlx5dv_init_obj(&objects, 0) == EINVAL && mlx5dv_init_obj(&objects, 1ull << 30) == EINVAL);
	CHECK(mlx5dv_init_obj(&objects, MLX5DV_OBJ_CQ) == 0);
	/* MLX5DV_OBJ_DEVX of rdma-core 65. */
	CHECK(mlx5dv_init_obj(&objects, 1 << 7) == EOPNOTSUPP);
	CHECK(mlx5dv_init_obj(&objects, MLX5DV_OBJ_CQ | 1 << 7) == EOPNOTSUPP);
}

int main(void)
{
	struct ibv_cq *cq;

	open_soft();
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(cq);
	completion_queues();
	operations(cq);
	queue_pairs(cq);
	shared_receives(cq);
	work_queues(cq);
	counters();
	device_memory();
	regions();
	no_files();
	other_files();
	xrc_domains();
	queries(cq);
	frames(cq);
	direct_completion_queues();
	direct_queues(cq);
	direct_objects(cq);
	CHECK(ibv_destroy_cq(cq) == 0);
	close_soft();
	puts("kept");
	return 0;
}
