/* Random requests by ibv_wr_* and by ibv_post_send, on a queue pair of each type, in error, so that they are only flushed. After
 * each batch the ring is compared with what an encoder of this file makes of the same requests. */
#include "common.h"
#include <infiniband/mlx5dv.h>
#include <endian.h>

#define DEPTH 24
#define MOST 6
#define SGES 2
#define ROOM 64

struct request {
	enum ibv_wr_opcode opcode;
	uint64_t wr_id;
	unsigned flags;
	uint32_t imm;
	uint64_t remote;
	uint32_t peer; /* number of the queue pair, DC target or shared receive queue, where requests name one */
	uint64_t key; /* Q_Key or DC key */
	int is_inline, count; /* SGEs, or buffers of inline data */
	struct ibv_sge sges[ROOM];
};

static struct ibv_qp *qp;
static struct ibv_qp_ex *qx;
static struct mlx5dv_qp_ex *direct;
static struct ibv_ah *ah;
static struct mlx5dv_ah address;
static struct ibv_cq *cq;
static struct mlx5dv_qp ring;
static uint32_t most_inline, most_sges;
static uint16_t head; /* blocks posted */
static uint64_t posted, polled, waiting[4 * DEPTH]; /* ids that have to come back */
static uint64_t state = 1;

static uint32_t any(uint32_t below)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % below;
}

static void make(struct request *r)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	int i;

	memset(r, 0, sizeof *r);
	r->opcode = opcodes[any(qp->qp_type == IBV_QPT_UD ? 2 : 6)];
	r->peer = any(1 << 24);
	r->key = qp->qp_type == IBV_QPT_UD ? any(1 << 30) : (uint64_t)any(1 << 30) << 32 | any(1 << 30);
	r->wr_id = any(8) ? posted : 0xffffffff9d3ac571u; /* an id that the library uses itself, too */
	r->flags = any(8) | (any(4) ? 0 : any(1 << 20) << 4); /* fence, signaled, solicited; others have no meaning here */
	r->imm = any(1 << 30);
	r->remote = (uintptr_t)buffer + 8 * any(64);
	r->is_inline = r->opcode != IBV_WR_RDMA_READ && r->opcode != IBV_WR_ATOMIC_FETCH_AND_ADD && any(2);
	r->count = r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 1 : any(SGES + 1);
	for (i = 0; i < r->count; i++) {
		uint32_t length = any(6) ? 1 + any(r->is_inline ? most_inline / r->count : 1 << 20) : 0;
		r->sges[i] = (struct ibv_sge){ (uintptr_t)buffer + any(1000), length, mr->lkey + any(7) };
		if (r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
			r->sges[i].length = 8;
	}
}

/* Whom the request goes to, behind the control segment; returns the octowords. */
static int encode_peer(const struct request *r, uint8_t *to)
{
	struct mlx5_wqe_av *av = (void *)to;

	switch ((int)qp->qp_type) {
	case IBV_QPT_UD:
		memcpy(av, address.av, sizeof *av);
		av->key.qkey.qkey = htobe32((uint32_t)r->key);
		av->dqp_dct = htobe32(r->peer | MLX5_EXTENDED_UD_AV);
		return 3;
	case IBV_QPT_DRIVER:
		memcpy(av, address.av, sizeof *av);
		av->key.dc_key = htobe64(r->key);
		av->dqp_dct = htobe32(r->peer | MLX5_EXTENDED_UD_AV);
		return 3;
	case IBV_QPT_XRC_SEND:
		*(uint32_t *)to = htobe32(r->peer);
		return 1;
	default:
		return 0;
	}
}

/* Encodes the request in mlx5's format; returns the octowords. */
static int encode(const struct request *r, uint16_t index, uint8_t *to)
{
	static const uint8_t opcodes[] = { [IBV_WR_SEND] = MLX5_OPCODE_SEND, [IBV_WR_SEND_WITH_IMM] = MLX5_OPCODE_SEND_IMM,
		[IBV_WR_RDMA_WRITE] = MLX5_OPCODE_RDMA_WRITE, [IBV_WR_RDMA_WRITE_WITH_IMM] = MLX5_OPCODE_RDMA_WRITE_IMM,
		[IBV_WR_RDMA_READ] = MLX5_OPCODE_RDMA_READ, [IBV_WR_ATOMIC_FETCH_AND_ADD] = MLX5_OPCODE_ATOMIC_FA };
	struct mlx5_wqe_ctrl_seg *control = (void *)to;
	int octowords = 1, i, has_imm = r->opcode == IBV_WR_SEND_WITH_IMM || r->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	uint8_t mode = (r->flags & IBV_SEND_FENCE ? 0x80 : 0) | (r->flags & IBV_SEND_SOLICITED ? 2 : 0) | 8; /* all are signaled */
	uint32_t length = 0;

	memset(to, 0, 1024);
	octowords += encode_peer(r, to + 16);
	if (r->opcode != IBV_WR_SEND && r->opcode != IBV_WR_SEND_WITH_IMM) {
		struct mlx5_wqe_raddr_seg *remote = (void *)(to + 16 * octowords);
		remote->raddr = htobe64(r->remote);
		remote->rkey = htobe32(mr->rkey);
		octowords++;
	}
	if (r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		*(uint64_t *)(to + 16 * octowords) = htobe64(r->imm);
		octowords++;
	}
	if (r->is_inline) {
		for (i = 0; i < r->count; i++) {
			memcpy(to + 16 * octowords + 4 + length, (void *)(uintptr_t)r->sges[i].addr, r->sges[i].length);
			length += r->sges[i].length;
		}
		if (length) {
			*(uint32_t *)(to + 16 * octowords) = htobe32(length | 0x80000000u);
			octowords += (length + 4 + 15) / 16;
		}
	} else {
		for (i = 0; i < r->count; i++) {
			if (!r->sges[i].length)
				continue;
			mlx5dv_set_data_seg((void *)(to + 16 * octowords), r->sges[i].length, r->sges[i].lkey, r->sges[i].addr);
			octowords++;
		}
	}
	mlx5dv_set_ctrl_seg(control, index, opcodes[r->opcode], 0, qp->qp_num, mode, octowords, 0, has_imm ? r->imm : 0);
	return octowords;
}

/* The number of bytes to compare: the bytes after inline data may have any value. */
static int bytes(const struct request *r, int octowords)
{
	int i, length = 0;

	for (i = 0; i < r->count; i++)
		length += r->sges[i].length;
	return r->is_inline && length ? 16 * octowords - (16 - (length + 4) % 16) % 16 : 16 * octowords;
}

static void compare(const struct request *list, int count)
{
	uint8_t expected[1024], found[1024];
	int i, block, octowords;

	for (i = 0; i < count; i++) {
		octowords = encode(&list[i], head, expected);
		for (block = 0; block < (octowords + 3) / 4; block++)
			memcpy(found + 64 * block, (char *)ring.sq.buf + ((head + block) & (ring.sq.wqe_cnt - 1)) * 64, 64);
		CHECK(memcmp(expected, found, bytes(&list[i], octowords)) == 0);
		head += (octowords + 3) / 4;
		waiting[posted++ % (4 * DEPTH)] = list[i].wr_id;
	}
	CHECK(ring.dbrec[MLX5_SND_DBR] == htobe32(head));
}

static void set_data(const struct request *r)
{
	struct ibv_data_buf parts[ROOM];
	int i;

	for (i = 0; i < r->count; i++)
		parts[i] = (struct ibv_data_buf){ (void *)(uintptr_t)r->sges[i].addr, r->sges[i].length };
	if (r->is_inline && r->count == 1 && any(4))
		ibv_wr_set_inline_data(qx, parts[0].addr, parts[0].length);
	else if (r->is_inline)
		ibv_wr_set_inline_data_list(qx, r->count, parts);
	else if (r->count == 1 && any(4))
		ibv_wr_set_sge(qx, r->sges[0].lkey, r->sges[0].addr, r->sges[0].length);
	else if (r->count || any(2)) /* an operation alone is a request without data */
		ibv_wr_set_sge_list(qx, r->count, r->sges);
}

static void set_peer(const struct request *r)
{
	switch ((int)qp->qp_type) {
	case IBV_QPT_UD: ibv_wr_set_ud_addr(qx, ah, r->peer, (uint32_t)r->key); break;
	case IBV_QPT_DRIVER: mlx5dv_wr_set_dc_addr(direct, ah, r->peer, r->key); break;
	case IBV_QPT_XRC_SEND: ibv_wr_set_xrc_srqn(qx, r->peer); break;
	default:;
	}
}

static void name(const struct request *r)
{
	qx->wr_id = r->wr_id;
	qx->wr_flags = r->flags;
	switch (r->opcode) {
	case IBV_WR_SEND: return ibv_wr_send(qx);
	case IBV_WR_SEND_WITH_IMM: return ibv_wr_send_imm(qx, r->imm);
	case IBV_WR_RDMA_WRITE: return ibv_wr_rdma_write(qx, mr->rkey, r->remote);
	case IBV_WR_RDMA_WRITE_WITH_IMM: return ibv_wr_rdma_write_imm(qx, mr->rkey, r->remote, r->imm);
	case IBV_WR_RDMA_READ: return ibv_wr_rdma_read(qx, mr->rkey, r->remote);
	default: ibv_wr_atomic_fetch_add(qx, mr->rkey, r->remote, r->imm);
	}
}

/* The operation, its data, and its peer as often as `peers` says: before the data, behind it, or both. */
static void call_with(const struct request *r, int peers)
{
	int before = peers == 2 || (peers && any(2));

	name(r);
	if (before)
		set_peer(r);
	set_data(r);
	if (peers - before)
		set_peer(r);
}

/* Aborts, perhaps in the middle of a request. */
static void give_up(void)
{
	struct request r;
	int calls = any(4);

	make(&r);
	if (calls > 0)
		name(&r);
	if (calls > 1)
		set_peer(&r);
	if (calls > 2)
		set_data(&r);
	ibv_wr_abort(qx);
}

static void call(const struct request *r)
{
	call_with(r, 1);
}

/* `refused` is the request that has to be, or `count`. */
static int post(struct request *list, int count, int refused)
{
	struct ibv_send_wr wrs[MOST], *bad = NULL;
	int i, error;

	for (i = 0; i < count; i++) {
		struct request *r = &list[i];
		wrs[i] = (struct ibv_send_wr){ .wr_id = r->wr_id, .next = i + 1 < count ? &wrs[i + 1] : NULL, .sg_list = r->sges,
			.num_sge = r->count, .opcode = r->opcode, .send_flags = r->flags | (r->is_inline ? IBV_SEND_INLINE : 0),
			.imm_data = r->imm, .wr.rdma = { r->remote, mr->rkey } };
		if (r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wrs[i].wr.atomic.remote_addr = r->remote;
			wrs[i].wr.atomic.compare_add = r->imm;
			wrs[i].wr.atomic.rkey = mr->rkey;
		}
		if (qp->qp_type == IBV_QPT_UD) {
			wrs[i].wr.ud.ah = ah;
			wrs[i].wr.ud.remote_qpn = r->peer;
			wrs[i].wr.ud.remote_qkey = (uint32_t)r->key;
		}
		wrs[i].qp_type.xrc.remote_srqn = r->peer;
	}
	error = ibv_post_send(qp, wrs, &bad);
	CHECK(bad == (error ? &wrs[refused] : NULL));
	return error;
}

/* An invalid request, and the expected errno. */
static int spoil(struct request *r, int by_calls)
{
	static const int opcodes[] = { 14, IBV_WR_ATOMIC_WRITE, 77, -1 }; /* 14 is IBV_WR_FLUSH of newer headers */

	make(r);
	switch (any(by_calls ? 6 : 8)) {
	case 0: /* an SGE of 2 GiB */
		*r = (struct request){ .opcode = IBV_WR_RDMA_WRITE, .count = 1, .sges = { { 0, 0x80000000u, 0 } } };
		return EINVAL;
	case 1: /* more inline data than asked for */
		*r = (struct request){ .opcode = IBV_WR_SEND, .is_inline = 1, .count = 1, .sges = { { (uintptr_t)buffer, most_inline + 1, 0 } } };
		return ENOMEM;
	case 2: /* a read has none */
		*r = (struct request){ .opcode = IBV_WR_RDMA_READ, .is_inline = 1, .count = 1, .sges = { { (uintptr_t)buffer, 8, 0 } } };
		return EINVAL;
	case 3: /* too many SGEs */
		*r = (struct request){ .opcode = IBV_WR_SEND, .count = most_sges + 1, .sges = { { (uintptr_t)buffer, 8, 0 } } };
		return ENOMEM;
	case 4: /* more inline data than 32 bits can say */
		*r = (struct request){ .opcode = IBV_WR_SEND, .is_inline = 1, .count = 2,
			.sges = { { (uintptr_t)buffer, 0xfffffff0u, 0 }, { (uintptr_t)buffer, 0x20, 0 } } };
		return ENOMEM;
	case 6: /* no such operation */
		r->opcode = opcodes[any(4)];
		return EINVAL;
	case 7: /* fewer than no SGEs */
		r->is_inline = 0;
		r->count = -1 - (int)any(3);
		return EINVAL;
	default: /* an atomic's address is a multiple of eight */
		*r = (struct request){ .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .count = 1, .remote = (uintptr_t)buffer | 1,
			.sges = { { (uintptr_t)buffer, 8, 0 } } };
		return EINVAL;
	}
}

static void poll_some(uint64_t until)
{
	struct ibv_wc wc[8];
	int i, n;

	CHECK(ibv_poll_cq(cq, 0, wc) == 0 && ibv_poll_cq(cq, -1, wc) == 0);
	while (posted - polled > until) {
		n = ibv_poll_cq(cq, 1 + any(8), wc);
		CHECK(n >= 0);
		for (i = 0; i < n; i++) {
			CHECK(wc[i].status == IBV_WC_WR_FLUSH_ERR && polled < posted);
			CHECK(wc[i].wr_id == waiting[polled % (4 * DEPTH)]);
			polled++;
		}
	}
}

static void round_of(int by_calls)
{
	struct request list[MOST];
	int i, peers, errno_of, count = 1 + any(3) * any(3), wrong = any(12) ? -1 : (int)any(count);

	for (i = 0; i < count; i++)
		make(&list[i]);
	if (by_calls) {
		ibv_wr_start(qx);
		for (i = 0; i < count; i++) {
			if (i == wrong) {
				/* No peer, or two. */
				peers = qp->qp_type != IBV_QPT_RC && any(2) ? 2 * any(2) : 1;
				errno_of = peers == 1 ? spoil(&list[i], 1) : EINVAL;
				call_with(&list[i], peers);
				for (i++; i < count; i++)
					call(&list[i]);
				CHECK(ibv_wr_complete(qx) == errno_of);
				return compare(list, 0);
			}
			call(&list[i]);
		}
		if (!any(8)) {
			give_up();
			return compare(list, 0);
		}
		CHECK(ibv_wr_complete(qx) == 0);
	} else {
		if (wrong >= 0) {
			errno_of = spoil(&list[wrong], 0);
			CHECK(post(list, count, wrong) == errno_of);
			return compare(list, wrong);
		}
		CHECK(post(list, count, count) == 0);
	}
	compare(list, count);
}

/* More requests than the queue has space for: none is posted. */
static void overfull(void)
{
	struct request list[2 * DEPTH];
	int i, room;

	for (room = (int)(DEPTH - (posted - polled)), i = 0; i < 2 * DEPTH; i++) {
		make(&list[i]);
		list[i].is_inline = list[i].count = 0;
		if (list[i].opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
			list[i].opcode = IBV_WR_SEND;
	}
	ibv_wr_start(qx);
	for (i = 0; i < 2 * DEPTH; i++)
		call(&list[i]);
	CHECK(ibv_wr_complete(qx) == ENOMEM);
	compare(list, 0);
	/* As many as fit are posted. */
	ibv_wr_start(qx);
	for (i = 0; i < room; i++)
		call(&list[i]);
	CHECK(ibv_wr_complete(qx) == 0);
	compare(list, room);
}

/* A queue pair in error. DC initiators are queue pairs of the driver's own type. */
static void make_queue(enum ibv_qp_type type)
{
	struct mlx5dv_qp_init_attr own = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI };
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd, .sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
		.cap = { .max_send_wr = DEPTH, .max_send_sge = SGES, .max_inline_data = 300 },
	};
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, error = { .qp_state = IBV_QPS_ERR };
	struct mlx5dv_obj obj = { .qp = { .out = &ring } };
	int fields = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (type == IBV_QPT_UD)
		fields |= IBV_QP_QKEY;
	else if (type != IBV_QPT_DRIVER)
		fields |= IBV_QP_ACCESS_FLAGS;
	if (type != IBV_QPT_UD)
		attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	qp = type == IBV_QPT_DRIVER ? mlx5dv_create_qp(context, &attr, &own) : ibv_create_qp_ex(context, &attr);
	CHECK(qp && qp->qp_type == type);
	most_inline = attr.cap.max_inline_data;
	most_sges = attr.cap.max_send_sge;
	CHECK(most_sges < ROOM);
	qx = ibv_qp_to_qp_ex(qp);
	direct = mlx5dv_qp_ex_from_ibv_qp_ex(qx);
	CHECK(ibv_modify_qp(qp, &init, fields) == 0 && ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0);
	obj.qp.in = qp;
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP) == 0 && ring.sq.stride == 64);
	head = 0;
	posted = polled = 0;
}

static void make_address(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 3, .hop_limit = 9, .flow_label = 77 } };
	struct mlx5dv_obj obj = { .ah = { .out = &address } };

	CHECK(ibv_query_gid(context, 1, 3, &attr.grh.dgid) == 0);
	ah = obj.ah.in = ibv_create_ah(pd, &attr);
	CHECK(ah && mlx5dv_init_obj(&obj, MLX5DV_OBJ_AH) == 0);
}

int main(void)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_QPT_DRIVER };
	int i, type;

	open_soft();
	for (i = 0; i < (int)sizeof buffer; i++)
		buffer[i] = (char)(i * 31 + i / 256);
	cq = ibv_create_cq(context, 128, NULL, NULL, 0);
	CHECK(cq);
	make_address();
	for (type = 0; type < 4; type++) {
		make_queue(types[type]);
		for (i = 0; i < 20000; i++) {
			/* ibv_post_send cannot name a DC target. */
			round_of(types[type] == IBV_QPT_DRIVER || any(3) != 0);
			poll_some(posted - polled > DEPTH - MOST ? any(DEPTH - MOST) : DEPTH);
			if (!any(100)) {
				poll_some(any(4));
				overfull();
				poll_some(DEPTH - MOST);
			}
		}
		poll_some(0);
		CHECK(ibv_destroy_qp(qp) == 0);
	}
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_cq(cq) == 0);
	close_soft();
	puts("kept");
	return 0;
}
