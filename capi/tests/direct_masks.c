/* Bits that no direct verb knows: each is refused with the errno of libmlx5, and nothing is made. */
#include "common.h"
#include <infiniband/mlx5dv.h>

#define REFUSES(call)                                                                                \
	do {                                                                                         \
		errno = 0;                                                                           \
		CHECK(!(call) && errno == EINVAL);                                                   \
	} while (0)

static void completion_queues(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 4 };
	struct mlx5dv_cq_init_attr own = { .comp_mask = 1 << 3 };
	struct ibv_cq_ex *cq;

	REFUSES(mlx5dv_create_cq(context, &attr, &own));
	own.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
	REFUSES(mlx5dv_create_cq(context, &attr, &own));
	own.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_FLAGS;
	own.flags = 1 << 1;
	REFUSES(mlx5dv_create_cq(context, &attr, &own));
	own.flags = 0;
	cq = mlx5dv_create_cq(context, &attr, &own);
	CHECK(cq && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

static void queues(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD, .cap = { 4, 4, 1, 1, 0 } };
	struct mlx5dv_qp_init_attr own = { .comp_mask = 1 << 5 };
	struct ibv_wq_init_attr receives = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq };
	struct mlx5dv_wq_init_attr strides = { .comp_mask = 1 << 1 };

	REFUSES(mlx5dv_create_qp(context, &attr, &own));
	own.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
	own.create_flags = 1 << 20;
	REFUSES(mlx5dv_create_qp(context, &attr, &own));
	REFUSES(mlx5dv_create_wq(context, &receives, &strides));
}

static void others(struct ibv_cq *cq)
{
	struct mlx5dv_context_attr attr = { .flags = 1 << 1 };
	struct mlx5dv_cq parts = { 0 };
	struct mlx5dv_obj objects = { .cq = { cq, &parts } };

	REFUSES(mlx5dv_open_device(context->device, &attr));
	attr.flags = 0;
	attr.comp_mask = 1 << 4;
	REFUSES(mlx5dv_open_device(context->device, &attr));
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
	queues(cq);
	others(cq);
	CHECK(ibv_destroy_cq(cq) == 0);
	close_soft();
	puts("kept");
	return 0;
}
