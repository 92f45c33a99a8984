/* Steering rules in the device's own form: which frames reach a queue pair by a matcher and its rules, and what is refused. */
#include "common.h"
#include <endian.h>
#include <infiniband/mlx5dv.h>

enum { FRAME = 64, DESTINATION = 8 };

/* In headers since rdma-core 60; a macro in verbs calls it. The size of an action says what the program knows. */
struct ibv_flow *__mlx5dv_create_flow(struct mlx5dv_flow_matcher *, struct mlx5dv_flow_match_parameters *, size_t,
	struct mlx5dv_flow_action_attr[], size_t);

struct match {
	size_t size;
	uint8_t bytes[64];
};

/* Frames to 02:00:00:00:00:LAST. */
static struct match to(uint8_t last)
{
	struct match match = { .size = 64, .bytes[DESTINATION] = 2, .bytes[DESTINATION + 5] = last };
	return match;
}

static struct mlx5dv_flow_matcher *by_destination(uint16_t priority)
{
	struct match mask = { .size = 64 };
	struct mlx5dv_flow_matcher_attr attr = { .type = IBV_FLOW_ATTR_NORMAL, .priority = priority,
		.match_criteria_enable = 1, .match_mask = (void *)&mask };
	struct mlx5dv_flow_matcher *made;

	memset(mask.bytes + DESTINATION, 0xff, 6);
	made = mlx5dv_create_flow_matcher(context, &attr);
	CHECK(made);
	return made;
}

static struct ibv_flow *rule(struct mlx5dv_flow_matcher *matcher, uint8_t last, int count, struct mlx5dv_flow_action_attr *actions)
{
	struct match value = to(last);
	errno = 0;
	return mlx5dv_create_flow(matcher, (void *)&value, count, actions);
}

static struct mlx5dv_flow_action_attr lead_to(struct ibv_qp *qp)
{
	struct mlx5dv_flow_action_attr action = { .type = MLX5DV_FLOW_ACTION_DEST_IBV_QP, .qp = qp };
	return action;
}

static struct mlx5dv_flow_action_attr just(int type)
{
	struct mlx5dv_flow_action_attr action = { .type = type };
	return action;
}

static struct mlx5dv_flow_action_attr tag(uint32_t value)
{
	struct mlx5dv_flow_action_attr action = { .type = MLX5DV_FLOW_ACTION_TAG, .tag_value = value };
	return action;
}

static struct ibv_qp *make_raw(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RAW_PACKET, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	return qp;
}

static void receive(struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)buffer + 1024, 512, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = qp->qp_num, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void send_to(struct ibv_qp *qp, uint8_t last)
{
	struct ibv_sge sge = { (uintptr_t)buffer, FRAME, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	memset(buffer, 0, FRAME);
	memcpy(buffer, (char[]){ 2, 0, 0, 0, 0, last, 2, 0, 0, 0, 0, 1, 0x12, 0x34 }, 14);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void frames(struct ibv_qp *from, struct ibv_qp *one, struct ibv_qp *other, struct ibv_cq *cq)
{
	struct mlx5dv_flow_matcher *matcher = by_destination(1), *front = by_destination(0);
	struct mlx5dv_flow_action_attr first[] = { tag(7), lead_to(one) }, second = lead_to(other);
	struct mlx5dv_flow_action_attr drop = just(MLX5DV_FLOW_ACTION_DROP);
	struct ibv_flow *rules[] = { rule(matcher, 7, 2, first), rule(matcher, 8, 1, &second) }, *dropping;

	CHECK(rules[0] && rules[1]);
	receive(one);
	receive(other);
	send_to(from, 8);
	CHECK(wait_for(cq).wr_id == other->qp_num);
	send_to(from, 7);
	CHECK(wait_for(cq).wr_id == one->qp_num);

	/* A rule in front takes the frames away, until it ends. */
	dropping = rule(front, 7, 1, &drop);
	CHECK(dropping);
	receive(one);
	send_to(from, 7);
	receive(other);
	send_to(from, 8);
	CHECK(wait_for(cq).wr_id == other->qp_num);
	CHECK(ibv_destroy_flow(dropping) == 0);
	send_to(from, 7);
	CHECK(wait_for(cq).wr_id == one->qp_num);

	CHECK(mlx5dv_destroy_flow_matcher(matcher) == EBUSY && ibv_destroy_qp(one) == EBUSY);
	CHECK(ibv_destroy_flow(rules[0]) == 0 && mlx5dv_destroy_flow_matcher(matcher) == EBUSY);
	CHECK(ibv_destroy_flow(rules[1]) == 0 && mlx5dv_destroy_flow_matcher(matcher) == 0);
	CHECK(mlx5dv_destroy_flow_matcher(front) == 0);
}

/* A rule of this matcher, which matches everything. */
static struct ibv_flow *any(struct mlx5dv_flow_matcher *matcher, struct mlx5dv_flow_action_attr *action)
{
	struct match value = { .size = 64 };
	struct ibv_flow *made = mlx5dv_create_flow(matcher, (void *)&value, 1, action);

	CHECK(made);
	return made;
}

/* A rule that matches all frames gets those that no rule in front of it takes. */
static void all_frames(struct ibv_qp *from, struct ibv_qp *one, struct ibv_qp *other, struct ibv_cq *cq)
{
	struct match mask = { .size = 64 };
	struct mlx5dv_flow_matcher_attr attr = { .priority = 3, .match_mask = (void *)&mask };
	struct mlx5dv_flow_matcher *all = mlx5dv_create_flow_matcher(context, &attr), *front = by_destination(1), *behind;
	struct mlx5dv_flow_action_attr rest = lead_to(other), first = lead_to(one), drop = just(MLX5DV_FLOW_ACTION_DROP);
	struct ibv_flow *rules[3] = { rule(front, 7, 1, &first) };

	CHECK(all && rules[0]);
	rules[1] = any(all, &rest);
	receive(one);
	receive(other);
	send_to(from, 8);
	CHECK(wait_for(cq).wr_id == other->qp_num);
	send_to(from, 7);
	CHECK(wait_for(cq).wr_id == one->qp_num);
	CHECK(ibv_destroy_flow(rules[1]) == 0);

	/* Dropped, although a rule behind leads to a queue with a receive. */
	attr.priority = 4;
	behind = mlx5dv_create_flow_matcher(context, &attr);
	CHECK(behind);
	rules[1] = any(all, &drop);
	rules[2] = any(behind, &rest);
	receive(one);
	receive(other);
	send_to(from, 8);
	send_to(from, 7);
	CHECK(wait_for(cq).wr_id == one->qp_num);
	CHECK(ibv_destroy_flow(rules[1]) == 0);
	send_to(from, 8);
	CHECK(wait_for(cq).wr_id == other->qp_num);
	CHECK(ibv_destroy_flow(rules[2]) == 0 && ibv_destroy_flow(rules[0]) == 0);
	CHECK(mlx5dv_destroy_flow_matcher(behind) == 0 && mlx5dv_destroy_flow_matcher(all) == 0);
	CHECK(mlx5dv_destroy_flow_matcher(front) == 0);
}

/* Rules of ibv_create_flow that the kernel refuses. */
static void refused_rules(struct ibv_qp *raw, struct ibv_qp *reliable)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = { .attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .num_of_specs = 1, .port = 1 },
		   .eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth } };
	struct ibv_flow *made = ibv_create_flow(raw, &rule.attr);

	CHECK(made && ibv_destroy_flow(made) == 0);
	CHECK(!ibv_create_flow(reliable, &rule.attr) && errno == EINVAL);
	rule.attr.flags = 1 << 7;
	CHECK(!ibv_create_flow(raw, &rule.attr) && errno == EINVAL);
	rule.attr.flags = 0;
	rule.attr.type = 99;
	CHECK(!ibv_create_flow(raw, &rule.attr) && errno == EINVAL);
	rule.attr.type = IBV_FLOW_ATTR_NORMAL;
	rule.eth.type = 99;
	CHECK(!ibv_create_flow(raw, &rule.attr) && errno == EINVAL);
}

/* Refused by libmlx5 itself, and refused by the kernel. */
static void refusals(struct ibv_qp *one, struct ibv_qp *reliable)
{
	struct mlx5dv_flow_matcher *matcher = by_destination(0);
	struct mlx5dv_flow_action_attr two_ways[] = { lead_to(one), just(MLX5DV_FLOW_ACTION_DROP) };
	struct mlx5dv_flow_action_attr two_tags[] = { tag(1), lead_to(one), tag(1) };
	struct mlx5dv_flow_action_attr big[] = { tag(1 << 24), lead_to(one) }, wrong = lead_to(reliable);
	struct mlx5dv_flow_action_attr counts = just(MLX5DV_FLOW_ACTION_IBV_COUNTER), unknown = just(99);
	struct mlx5dv_flow_action_attr misses = just(MLX5DV_FLOW_ACTION_DEFAULT_MISS), way = lead_to(one);
	struct { struct mlx5dv_flow_action_attr action; uint64_t more; } longer[] = { { tag(3) }, { lead_to(one) } };
	struct match value = to(9), mask = { .size = 64 };
	struct mlx5dv_flow_matcher_attr attr = { .match_criteria_enable = 1, .match_mask = (void *)&mask };
	struct ibv_flow *made;

	CHECK(!rule(matcher, 1, 2, two_ways) && errno == EOPNOTSUPP);
	CHECK(!rule(matcher, 1, 3, two_tags) && errno == EINVAL);
	CHECK(!rule(matcher, 1, 2, big) && errno == EINVAL);
	CHECK(!rule(matcher, 1, 1, &wrong) && errno == EINVAL);
	CHECK(!rule(matcher, 1, 1, &counts) && errno == EOPNOTSUPP);
	CHECK(!rule(matcher, 1, 1, &unknown) && errno == EOPNOTSUPP);
	CHECK(!rule(matcher, 1, 1, &misses) && errno == EOPNOTSUPP);
	CHECK(!rule(matcher, 1, 0, NULL) && errno == EINVAL);
	made = rule(matcher, 1, 1, &way);
	CHECK(made && !rule(matcher, 1, 1, two_ways + 1) && errno == EEXIST && ibv_destroy_flow(made) == 0);

	/* Actions of programs with newer headers are longer. */
	made = __mlx5dv_create_flow(matcher, (void *)&value, 2, (void *)longer, sizeof longer[0]);
	CHECK(made && ibv_destroy_flow(made) == 0);
	CHECK(mlx5dv_destroy_flow_matcher(matcher) == 0);

	attr.type = IBV_FLOW_ATTR_SNIFFER;
	CHECK(!mlx5dv_create_flow_matcher(context, &attr) && errno == EOPNOTSUPP);
	attr.type = IBV_FLOW_ATTR_NORMAL;
	attr.comp_mask = 1 << 7;
	CHECK(!mlx5dv_create_flow_matcher(context, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = MLX5DV_FLOW_MATCHER_MASK_FT_TYPE;
	attr.ft_type = MLX5DV_FLOW_TABLE_TYPE_NIC_TX;
	CHECK(!mlx5dv_create_flow_matcher(context, &attr) && errno == EOPNOTSUPP);
	attr.ft_type = 5; /* RDMA transport, which is per port */
	CHECK(!mlx5dv_create_flow_matcher(context, &attr) && errno == EINVAL);
	attr.ft_type = MLX5DV_FLOW_TABLE_TYPE_NIC_RX;
	mask.size = 0;
	CHECK(!mlx5dv_create_flow_matcher(context, &attr) && errno == EINVAL);
}

/* The software device has no actions on headers; a kernel that does not know a method says so. */
static void headers(void)
{
	uint64_t action = 0;

	CHECK(!mlx5dv_create_flow_action_modify_header(context, sizeof action, &action, MLX5DV_FLOW_TABLE_TYPE_NIC_RX));
	CHECK(errno == EPROTONOSUPPORT);
	CHECK(!mlx5dv_create_flow_action_packet_reformat(context, 0, &action, 0, MLX5DV_FLOW_TABLE_TYPE_NIC_RX));
	CHECK(errno == EINVAL);
	CHECK(!mlx5dv_create_flow_action_packet_reformat(context, sizeof action, &action, 0, MLX5DV_FLOW_TABLE_TYPE_NIC_RX));
	CHECK(errno == EPROTONOSUPPORT);
}

int main(void)
{
	struct ibv_context *second;
	struct ibv_cq *cq;
	struct ibv_qp *from, *one, *other, *reliable;

	open_soft();
	/* A port delivers to itself once two contexts are open. */
	second = ibv_open_device(context->device);
	cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	CHECK(second && cq);
	from = make_raw(cq);
	one = make_raw(cq);
	other = make_raw(cq);
	reliable = make_qp(cq, 8, 0);
	frames(from, one, other, cq);
	all_frames(from, one, other, cq);
	refused_rules(one, reliable);
	refusals(one, reliable);
	headers();
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
	CHECK(ibv_destroy_qp(reliable) == 0 && ibv_destroy_cq(cq) == 0 && ibv_close_device(second) == 0);
	close_soft();
	puts("kept");
	return 0;
}
