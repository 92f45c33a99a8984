/* Structs of programs that were built with older headers are shorter. Here such structs end where memory ends: what the
 * library reads or writes behind them is a fault. */
#include "common.h"
#include <infiniband/mlx5dv.h>
#include <sys/mman.h>

static char *end;

/* The first bytes of a struct, as the last ones of the page. */
static void *shorter(const void *whole, size_t bytes)
{
	return memcpy(end - bytes, whole, bytes);
}

/* Up to the first field that the old header did not have. Structs of C end at a multiple of their alignment. */
#define UNTIL(whole, field)                                                                          \
	shorter(&(whole), (offsetof(__typeof__(whole), field) + _Alignof(__typeof__(whole)) - 1) /  \
			_Alignof(__typeof__(whole)) * _Alignof(__typeof__(whole)))

static struct ibv_cq *cq;

static void completion_queues(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 16 };
	struct mlx5dv_cq_init_attr own = { 0 };
	struct ibv_cq_ex *made = ibv_create_cq_ex(context, UNTIL(init, parent_domain));
	CHECK(made && ibv_destroy_cq(ibv_cq_ex_to_cq(made)) == 0);
	made = mlx5dv_create_cq(context, &init, UNTIL(own, flags));
	CHECK(made && ibv_destroy_cq(ibv_cq_ex_to_cq(made)) == 0);
	own.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE;
	own.cqe_comp_res_format = MLX5DV_CQE_RES_FORMAT_HASH;
	made = mlx5dv_create_cq(context, &init, UNTIL(own, cqe_size));
	CHECK(made && ibv_destroy_cq(ibv_cq_ex_to_cq(made)) == 0);
}

static void *parent(struct ibv_pd *of)
{
	struct ibv_parent_domain_init_attr init = { .pd = of };
	return ibv_alloc_parent_domain(context, UNTIL(init, alloc));
}

static void queue_pairs(void)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, *old;
	struct mlx5dv_qp_init_attr own = { 0 };
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buffer + 64, mr->rkey } }, first, *last, *bad;
	struct ibv_qp *qp;

	init.comp_mask = IBV_QP_INIT_ATTR_PD;
	init.pd = pd;
	/* The header's function is ibv_create_qp with this mask alone. */
	qp = mlx5dv_create_qp(context, UNTIL(init, create_flags), NULL);
	CHECK(qp && ibv_destroy_qp(qp) == 0);
	init.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	qp = ibv_create_qp_ex(context, UNTIL(init, rwq_ind_tbl));
	CHECK(qp && ibv_destroy_qp(qp) == 0);
	/* No mask names the domain, which the struct of no program lacks. */
	init.comp_mask = 0;
	CHECK(!mlx5dv_create_qp(context, UNTIL(init, pd), NULL) && errno == EINVAL);
	init.comp_mask = IBV_QP_INIT_ATTR_PD;
	own.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
	qp = mlx5dv_create_qp(context, &init, UNTIL(own, send_ops_flags));
	CHECK(qp);
	old = UNTIL(attr, rate_limit);
	CHECK(ibv_modify_qp(qp, old, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(ibv_query_qp(qp, old, IBV_QP_STATE, (struct ibv_qp_init_attr *)&init) == 0);
	CHECK(old->qp_state == IBV_QPS_INIT);
	CHECK(ibv_destroy_qp(qp) == 0);
	qp = make_qp(cq, 4, 0);
	connect_to_itself(qp);
	/* A work request of before XRC, windows and TSO. */
	CHECK(ibv_post_send(qp, UNTIL(wr, qp_type), &bad) == 0 && wait_for(cq).status == IBV_WC_SUCCESS);
	wr.send_flags |= IBV_SEND_INLINE;
	CHECK(ibv_post_send(qp, UNTIL(wr, qp_type), &bad) == 0 && wait_for(cq).status == IBV_WC_SUCCESS);
	/* At the end of a list, and refused. */
	first = wr;
	first.next = last = UNTIL(wr, qp_type);
	CHECK(ibv_post_send(qp, &first, &bad) == 0);
	CHECK(wait_for(cq).status == IBV_WC_SUCCESS && wait_for(cq).status == IBV_WC_SUCCESS);
	last->opcode = IBV_WR_DRIVER1;
	CHECK(ibv_post_send(qp, last, &bad) == EINVAL && bad == last);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void work_queues(void)
{
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq };
	struct ibv_wq_attr attr = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
	struct mlx5dv_wq_init_attr own = { 0 };
	struct ibv_wq *wq = ibv_create_wq(context, UNTIL(init, create_flags));
	CHECK(wq && ibv_modify_wq(wq, UNTIL(attr, flags)) == 0 && ibv_destroy_wq(wq) == 0);
	wq = mlx5dv_create_wq(context, &init, UNTIL(own, striding_rq_attrs));
	CHECK(wq && ibv_destroy_wq(wq) == 0);
}

static void shared_queues(void)
{
	struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 4, .max_sge = 1 }, .pd = pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC, .cq = cq };
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
		.oflags = O_CREAT };
	struct mlx5dv_srq parts = { 0 };
	struct mlx5dv_obj object = { 0 };
	struct ibv_srq *srq;

	init.xrcd = ibv_open_xrcd(context, shorter(&domain, sizeof domain));
	CHECK(init.xrcd);
	srq = ibv_create_srq_ex(context, UNTIL(init, tm_cap));
	CHECK(srq);
	object.srq.in = srq;
	object.srq.out = UNTIL(parts, srqn);
	CHECK(mlx5dv_init_obj(&object, MLX5DV_OBJ_SRQ) == 0 && object.srq.out->buf);
	object.srq.out = &parts;
	CHECK(mlx5dv_init_obj(UNTIL(object, dm), MLX5DV_OBJ_SRQ) == 0 && parts.buf && parts.comp_mask == 0);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_close_xrcd(init.xrcd) == 0);
}

static void others(void)
{
	struct mlx5dv_context asked = { .comp_mask = MLX5DV_CONTEXT_MASK_CQE_COMPRESION }, *told;
	struct mlx5dv_flow_matcher_attr attr = { .type = IBV_FLOW_ATTR_NORMAL };
	struct { size_t size; uint64_t bytes[8]; } mask = { sizeof mask.bytes, { 0 } };
	struct mlx5dv_flow_matcher *matcher;
	struct ibv_alloc_dm_attr memory = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, shorter(&memory, sizeof memory));

	CHECK(dm && ibv_free_dm(dm) == 0);
	told = UNTIL(asked, sw_parsing_caps);
	CHECK(mlx5dv_query_device(context, told) == 0);
	CHECK(told->comp_mask == MLX5DV_CONTEXT_MASK_CQE_COMPRESION && told->cqe_comp_caps.max_num > 0);
	attr.match_mask = (void *)&mask;
	matcher = mlx5dv_create_flow_matcher(context, UNTIL(attr, ft_type));
	CHECK(matcher && mlx5dv_destroy_flow_matcher(matcher) == 0);
}

int main(void)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_pd *child;

	CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
	end = pages + page;
	open_soft();
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(cq);
	completion_queues();
	child = parent(pd);
	CHECK(child && ibv_dealloc_pd(child) == 0);
	queue_pairs();
	work_queues();
	shared_queues();
	others();
	CHECK(ibv_destroy_cq(cq) == 0);
	close_soft();
	puts("kept");
	return 0;
}
