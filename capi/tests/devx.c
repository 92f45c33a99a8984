/* Doorbell pages of a program's own, and what the software device says to firmware commands. */
#include "common.h"
#include <endian.h>
#include <infiniband/mlx5dv.h>

#ifndef MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED
#define MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED (1U << 31)
#endif

static void doorbell_pages(void)
{
	struct mlx5dv_devx_uar *fast, *own, *shared, *again;
	uint32_t id;

	CHECK(!mlx5dv_devx_alloc_uar(context, 1 << 7) && errno == EOPNOTSUPP);
	fast = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
	own = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED);
	shared = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	again = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	CHECK(fast && own && shared && again);
	CHECK((char *)fast->reg_addr == (char *)fast->base_addr + 0x800 && fast->comp_mask == 0);
	CHECK(fast->page_id != own->page_id && fast->base_addr != own->base_addr && fast->mmap_off != own->mmap_off);
	CHECK(shared->page_id != own->page_id && shared->page_id == again->page_id);
	CHECK(shared->base_addr == again->base_addr && shared->reg_addr == again->reg_addr);
	/* A doorbell of no queue is taken and does nothing. */
	*(volatile uint64_t *)fast->reg_addr = 0;
	*(volatile uint64_t *)own->reg_addr = 0;
	id = fast->page_id;
	mlx5dv_devx_free_uar(fast);
	mlx5dv_devx_free_uar(shared);
	/* The shared page is there as long as its context, and a page that is freed can be had again. */
	*(volatile uint64_t *)again->reg_addr = 0;
	fast = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
	CHECK(fast && fast->page_id == id);
	mlx5dv_devx_free_uar(fast);
	mlx5dv_devx_free_uar(again);
	mlx5dv_devx_free_uar(own);
}

/* The kernel knows no method of objects that the device lacks. */
static void what_the_device_lacks(void)
{
	uint32_t rate[12] = { 1000 };
	CHECK(!mlx5dv_alloc_var(context, 1 << 9) && errno == EOPNOTSUPP);
	CHECK(!mlx5dv_alloc_var(context, 0) && errno == EPROTONOSUPPORT);
	CHECK(!mlx5dv_pp_alloc(context, sizeof rate, rate, 1 << 9) && errno == EOPNOTSUPP);
	CHECK(!mlx5dv_pp_alloc(context, sizeof rate, rate, 0) && errno == EPROTONOSUPPORT);
	CHECK(!mlx5dv_devx_umem_reg(context, buffer, sizeof buffer, 0) && errno == EPROTONOSUPPORT);
	CHECK(!mlx5dv_devx_create_cmd_comp(context) && errno == EPROTONOSUPPORT);
	CHECK(!mlx5dv_devx_create_event_channel(context, 0) && errno == EPROTONOSUPPORT);
}

/* Commands begin with the opcode: QUERY_HCA_CAP, of the general capabilities. */
static void commands(int granted)
{
	uint8_t in[16] = { 0x01, 0x00 }, out[16 + 4096], *huge = calloc(1, 1 << 16);
	uint32_t number;
	int errno_of_all = granted ? 0 : EINVAL;

	memset(out, 0xaa, sizeof out);
	CHECK(mlx5dv_devx_general_cmd(context, in, sizeof in, out, sizeof out) == errno_of_all);
	CHECK(granted ? out[0] == 0 : out[0] == 0xaa);
	/* CREATE_QP is no general command: the firmware's answer says so. */
	in[0] = 0x05;
	CHECK(mlx5dv_devx_general_cmd(context, in, sizeof in, out, sizeof out) == (granted ? EREMOTEIO : EINVAL));
	CHECK(!granted || out[0] != 0);
	/* More than the length of an attribute can say. */
	CHECK(huge && mlx5dv_devx_general_cmd(context, huge, 1 << 16, out, sizeof out) == EINVAL);
	free(huge);
	CHECK(!mlx5dv_devx_obj_create(context, in, sizeof in, out, sizeof out) && errno == EPROTONOSUPPORT);
	CHECK(mlx5dv_devx_query_eqn(context, 0, &number) == EPROTONOSUPPORT);
}

int main(void)
{
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *devx;
	struct ibv_cq *cq;
	uint8_t in[16] = { 0x04, 0x02 }, out[512];

	open_soft();
	doorbell_pages();
	what_the_device_lacks();
	devx = mlx5dv_open_device(list[0], &attr);
	CHECK(!devx && errno == EOPNOTSUPP);
	commands(0);
	attr.flags = 1 << 9;
	CHECK(!mlx5dv_open_device(list[0], &attr) && errno == EOPNOTSUPP);
	cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	CHECK(cq && mlx5dv_devx_cq_query(cq, in, sizeof in, out, sizeof out) == EPROTONOSUPPORT);
	CHECK(ibv_destroy_cq(cq) == 0);
	ibv_free_device_list(list);
	close_soft();
	puts("kept");
	return 0;
}
