/* Memory windows of posted requests start at their address or, with IBV_ACCESS_ZERO_BASED, at 0. ibv_bind_mw refuses
 * the latter, as mlx5_bind_mw of libmlx5 does. */
#include "common.h"

static struct ibv_cq *cq;

static enum ibv_wc_status done(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	return wait_for(cq).status;
}

static enum ibv_wc_status write_to(struct ibv_qp *qp, uint64_t address, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { address, rkey } };

	return done(qp, &wr);
}

/* The window is over 64 bytes from 1024 on. */
static uint32_t bound(struct ibv_qp *qp, struct ibv_mw *mw, unsigned flags, int by_list)
{
	struct ibv_mw_bind_info info = { mr, (uintptr_t)buffer + 1024, 64, IBV_ACCESS_REMOTE_WRITE | flags };
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW,
		.bind_mw = { .mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = info } };
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

	if (by_list) {
		CHECK(done(qp, &wr) == IBV_WC_SUCCESS);
	} else {
		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_bind_mw(ex, mw, wr.bind_mw.rkey, &info);
		CHECK(ibv_wr_complete(ex) == 0 && wait_for(cq).status == IBV_WC_SUCCESS);
	}
	return wr.bind_mw.rkey;
}

static void reached_at(unsigned flags, uint64_t start, uint64_t elsewhere, int by_list)
{
	struct ibv_qp *qp = make_qp(cq, 4, IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_RDMA_WRITE);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	uint32_t rkey;

	CHECK(mw);
	connect_to_itself(qp);
	rkey = bound(qp, mw, flags, by_list);
	memset(buffer, 0, sizeof buffer);
	memcpy(buffer, "written", 8);
	CHECK(write_to(qp, start, rkey) == IBV_WC_SUCCESS && memcmp(buffer + 1024, "written", 8) == 0);
	CHECK(write_to(qp, start + 56, rkey) == IBV_WC_SUCCESS && memcmp(buffer + 1080, "written", 8) == 0);
	CHECK(write_to(qp, elsewhere, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_dealloc_mw(mw) == 0);
}

static void refused_by_bind_mw(void)
{
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)buffer + 1024, 64, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED } };
	uint32_t before;

	CHECK(mw);
	before = mw->rkey;
	connect_to_itself(qp);
	CHECK(ibv_bind_mw(qp, mw, &bind) == EINVAL && mw->rkey == before);
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	CHECK(ibv_bind_mw(qp, mw, &bind) == 0 && wait_for(cq).status == IBV_WC_SUCCESS);
	CHECK(write_to(qp, (uintptr_t)buffer + 1024, mw->rkey) == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_dealloc_mw(mw) == 0);
}

int main(void)
{
	uint64_t address = (uintptr_t)buffer + 1024;
	int by_list;

	open_soft();
	/* Windows are bound over regions that allow it. */
	CHECK(ibv_dereg_mr(mr) == 0);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(mr && cq);
	for (by_list = 0; by_list < 2; by_list++) {
		reached_at(0, address, 0, by_list);
		reached_at(IBV_ACCESS_ZERO_BASED, 0, address, by_list);
	}
	refused_by_bind_mw();
	CHECK(ibv_destroy_cq(cq) == 0);
	close_soft();
	puts("kept");
	return 0;
}
