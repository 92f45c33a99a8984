/* What a program's user sees with UVERBS_TRACE and UVERBS_CHECK: an argument says which mistakes this program makes. */
#include "common.h"
#include <infiniband/mlx5dv.h>

static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void post(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buffer + 64, mr->rkey } }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void complete(uint64_t wr_id)
{
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(count == 1 && wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS);
}

/* A receive without memory, which no message consumes. */
static void receive(uint64_t wr_id)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void *other_thread(void *unused)
{
	post(2);
	return unused;
}

static void close_too_early(struct ibv_device *device)
{
	struct ibv_context *other = ibv_open_device(device);
	struct ibv_pd *pd = ibv_alloc_pd(other);
	struct ibv_cq *cq = ibv_create_cq(other, 16, NULL, NULL, 0);
	CHECK(other && pd && cq && ibv_close_device(other) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void use_two_threads(void)
{
	pthread_t thread;
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(qx);
	CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	ibv_wr_abort(qx);
	complete(2);
}

static void destroy_twice(void)
{
	struct ibv_pd *other = ibv_alloc_pd(context);
	CHECK(other && ibv_dealloc_pd(other) == 0);
	CHECK(ibv_dealloc_pd(other) == EINVAL);
	errno = 0;
	CHECK(ibv_reg_mr(other, buffer, sizeof buffer, 0) == NULL && errno == EINVAL);
}

static void mix_contexts(struct ibv_device *device)
{
	struct ibv_context *other = ibv_open_device(device);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(other);
	CHECK(other && channel);
	errno = 0;
	CHECK(ibv_create_cq(context, 8, NULL, channel, 0) == NULL && errno == EINVAL);
	CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_close_device(other) == 0);
}

static void lose_memory(void)
{
	struct ibv_mr *lost = ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { (uintptr_t)buffer, 8, lost->lkey };
	struct ibv_recv_wr wr = { .wr_id = 3, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	CHECK(ibv_dereg_mr(lost) == 0);
}

/* Inline functions of the header read an object before the library sees the call. */
static void use_queues_that_are_gone(void)
{
	struct ibv_cq *gone_cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp *gone = make_qp(gone_cq, 4, IBV_QP_EX_WITH_SEND);
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(gone);
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send = NULL;
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive = NULL;
	struct ibv_wc wc;

	CHECK(ibv_destroy_qp(gone) == 0 && ibv_destroy_cq(gone_cq) == 0);
	CHECK(ibv_post_send(gone, &send, &bad_send) == EINVAL && bad_send == &send);
	CHECK(ibv_post_recv(gone, &receive, &bad_receive) == EINVAL && bad_receive == &receive);
	ibv_wr_start(qx);
	ibv_wr_send(qx);
	ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)buffer, 8);
	CHECK(ibv_wr_complete(qx) == EINVAL);
	CHECK(ibv_poll_cq(gone_cq, 1, &wc) == -1);
}

static void build_wrongly(void)
{
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	CHECK(ibv_wr_complete(qx) == EINVAL);
	ibv_wr_start(qx);
	ibv_wr_start(qx);
	ibv_wr_abort(qx);
}

static void lose_memory_of_calls(void)
{
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	struct ibv_mr *lost = ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_wc wc;

	ibv_wr_start(qx);
	qx->wr_id = 4;
	qx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)buffer + 64);
	ibv_wr_set_sge(qx, lost->lkey, (uintptr_t)buffer, 8);
	CHECK(ibv_wr_complete(qx) == 0);
	CHECK(ibv_dereg_mr(lost) == 0);
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	/* The request has completed, with or without success, and no longer uses its memory. */
	lost = ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE);
	CHECK(wc.wr_id == 4 && ibv_dereg_mr(lost) == 0);
}

/* The allocator gives addresses of objects that are gone to new ones, whichever verb makes them. */
static void use_addresses_again(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 8 };
	struct ibv_modify_cq_attr moderation = { IBV_CQ_ATTR_MODERATE, { 4, 16 } };
	struct ibv_gid_entry gids[64];
	struct mlx5dv_devx_uar *page;
	int i;

	for (i = 0; i < 8; i++) {
		struct ibv_mr *region = ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE);
		CHECK(region && ibv_dereg_mr(region) == 0);
		region = ibv_alloc_null_mr(pd);
		CHECK(region && ibv_dereg_mr(region) == 0);
	}
	for (i = 0; i < 8; i++) {
		struct ibv_cq *queue = ibv_create_cq(context, 8, NULL, NULL, 0);
		CHECK(queue && ibv_destroy_cq(queue) == 0);
		queue = ibv_cq_ex_to_cq(mlx5dv_create_cq(context, &attr, NULL));
		CHECK(queue && ibv_modify_cq(queue, &moderation) == 0);
		ibv_ack_cq_events(queue, 0);
		CHECK(ibv_destroy_cq(queue) == 0);
	}
	page = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
	CHECK(page);
	mlx5dv_devx_free_uar(page);
	CHECK(ibv_query_gid_table(context, gids, 64, 0) > 0);
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(pd && mr && cq);
	CHECK(!ibv_create_cq(context, -1, NULL, NULL, 0));
	qp = make_qp(cq, 8, IBV_QP_EX_WITH_RDMA_WRITE);
	connect_to_itself(qp);
	post(0x11);
	complete(0x11);
	receive(0x12);
	use_addresses_again();
	if (argc > 1) {
		destroy_twice();
		mix_contexts(list[0]);
		close_too_early(list[0]);
		use_two_threads();
		use_queues_that_are_gone();
		build_wrongly();
		lose_memory_of_calls();
		lose_memory();
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	ibv_free_device_list(list);
	puts("kept");
	return 0;
}
