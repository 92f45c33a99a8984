/* Calls of libmlx5 that are plain requests to mlx5's kernel driver, and that no software device has: with -DSHIM a library for
 * LD_PRELOAD that writes each such request down and answers it as a device does that has them; else the program that makes them.
 * What the program of libmlx5 writes down is what it must write down with another libmlx5.so.1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef SHIM
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>
#include <rdma/rdma_user_ioctl_cmds.h>

enum { FIRST = 1 << UVERBS_ID_NS_SHIFT, HANDLE = 77, TABLE = 0x1234 };

static int by_id(const void *a, const void *b)
{
	return ((const struct ib_uverbs_attr *)a)->attr_id - ((const struct ib_uverbs_attr *)b)->attr_id;
}

/* An input: up to eight bytes are in the attribute, more are where it points to. */
static void write_input(FILE *file, const struct ib_uverbs_attr *attr)
{
	const uint8_t *bytes = attr->len > 8 ? (void *)(uintptr_t)attr->data : (void *)&attr->data;
	int i;
	for (i = 0; i < attr->len; i++)
		fprintf(file, "%02x", bytes[i]);
}

static int is_output(const struct ib_uverbs_ioctl_hdr *header, int id)
{
	return (header->object_id == MLX5_IB_OBJECT_STEERING_ANCHOR && id == MLX5_IB_ATTR_STEERING_ANCHOR_FT_ID)
		|| (header->object_id == UVERBS_OBJECT_DM && id >= MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_START_OFFSET);
}

static void write_down(const struct ib_uverbs_ioctl_hdr *header)
{
	FILE *file = fopen(getenv("REQUESTS"), "a");
	struct ib_uverbs_attr list[16];
	int i, count = header->num_attrs;

	memcpy(list, header->attrs, count * sizeof *list);
	qsort(list, count, sizeof *list, by_id);
	fprintf(file, "object %x method %x driver %d\n", header->object_id, header->method_id, header->driver_id);
	for (i = 0; i < count; i++) {
		/* The kernel takes flags of four bytes and of eight (`uverbs_get_flags64`). */
		if (header->object_id == UVERBS_OBJECT_FLOW && list[i].attr_id == MLX5_IB_ATTR_CREATE_FLOW_FLAGS)
			list[i].len = 8;
		fprintf(file, "  attribute %x flags %x length %d ", list[i].attr_id, list[i].flags, list[i].len);
		if (is_output(header, list[i].attr_id))
			fprintf(file, "out\n");
		else if (list[i].len == 0)
			fprintf(file, "handle\n");
		else
			write_input(file, &list[i]), fprintf(file, "\n");
	}
	fclose(file);
}

static struct ib_uverbs_attr *attribute(struct ib_uverbs_ioctl_hdr *header, int id)
{
	int i;
	for (i = 0; i < header->num_attrs; i++)
		if (header->attrs[i].attr_id == id)
			return &header->attrs[i];
	abort();
}

static int make(struct ib_uverbs_ioctl_hdr *header)
{
	attribute(header, FIRST)->data = HANDLE;
	if (header->object_id == MLX5_IB_OBJECT_STEERING_ANCHOR)
		*(uint32_t *)(uintptr_t)attribute(header, MLX5_IB_ATTR_STEERING_ANCHOR_FT_ID)->data = TABLE;
	return 0;
}

static int destroy(struct ib_uverbs_ioctl_hdr *header)
{
	if (header->attrs[0].data == HANDLE)
		return 0;
	errno = ENOENT;
	return -1;
}

/* Where the memory itself is: the operation stores. */
static void ask_for_memory(struct ib_uverbs_ioctl_hdr *header, struct ib_uverbs_ioctl_hdr *query, uint64_t *length)
{
	query->object_id = UVERBS_OBJECT_DM;
	query->method_id = MLX5_IB_METHOD_DM_QUERY;
	query->driver_id = header->driver_id;
	query->num_attrs = 4;
	query->length = sizeof *query + 4 * sizeof query->attrs[0];
	query->attrs[0] = *attribute(header, MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_HANDLE);
	query->attrs[1] = *attribute(header, MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_START_OFFSET);
	query->attrs[2] = *attribute(header, MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_PAGE_INDEX);
	query->attrs[3] = (struct ib_uverbs_attr){ .len = sizeof *length, .flags = 1, .data = (uintptr_t)length };
	query->attrs[0].attr_id = MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE;
	query->attrs[1].attr_id = MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET;
	query->attrs[2].attr_id = MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX;
	query->attrs[3].attr_id = MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH;
}

int ioctl(int fd, unsigned long request, ...)
{
	int (*next)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
	struct ib_uverbs_ioctl_hdr *header;
	uint64_t query[64], length;
	va_list list;

	va_start(list, request);
	header = va_arg(list, void *);
	va_end(list);
	if (request != RDMA_VERBS_IOCTL)
		return next(fd, request, header);
	switch (header->object_id) {
	case MLX5_IB_OBJECT_STEERING_ANCHOR:
		write_down(header);
		return header->method_id == MLX5_IB_METHOD_STEERING_ANCHOR_CREATE ? make(header) : destroy(header);
	case UVERBS_OBJECT_FLOW:
		write_down(header);
		return header->method_id == MLX5_IB_METHOD_CREATE_FLOW ? make(header) : destroy(header);
	case UVERBS_OBJECT_FLOW_ACTION:
		write_down(header);
		return header->method_id == UVERBS_METHOD_FLOW_ACTION_DESTROY ? destroy(header) : make(header);
	case UVERBS_OBJECT_DM:
		if (header->method_id != MLX5_IB_METHOD_DM_MAP_OP_ADDR)
			break;
		write_down(header);
		memset(query, 0, sizeof query);
		ask_for_memory(header, (void *)query, &length);
		header = (void *)query;
	}
	return next(fd, request, header);
}

#else
#include <infiniband/mlx5dv.h>

#define CHECK(what)                                                                          \
	do {                                                                                 \
		if (!(what)) {                                                               \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

static struct ibv_context *context;

static void anchors(void)
{
	static const int tables[] = { MLX5DV_FLOW_TABLE_TYPE_NIC_RX, MLX5DV_FLOW_TABLE_TYPE_NIC_TX, MLX5DV_FLOW_TABLE_TYPE_RDMA_RX,
		MLX5DV_FLOW_TABLE_TYPE_RDMA_TX };
	int i;
	for (i = 0; i < 4; i++) {
		struct mlx5dv_steering_anchor_attr attr = { .ft_type = tables[i], .priority = 7 * i };
		struct mlx5dv_steering_anchor *anchor = mlx5dv_create_steering_anchor(context, &attr);
		CHECK(anchor && anchor->id == 0x1234 && mlx5dv_destroy_steering_anchor(anchor) == 0);
		attr.comp_mask = 1;
		CHECK(!mlx5dv_create_steering_anchor(context, &attr) && errno == EOPNOTSUPP);
	}
}

static void operations(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	volatile uint32_t *address;
	uint32_t value = 0;

	CHECK(dm && (address = mlx5dv_dm_map_op_addr(dm, 5)));
	address[3] = 4711;
	CHECK(ibv_memcpy_from_dm(&value, dm, 12, 4) == 0 && value == 4711);
	/* The program's mapping outlives the memory. */
	CHECK(ibv_free_dm(dm) == 0 && address[3] == 4711 && munmap((void *)address, 4096) == 0);
}

static void actions(void)
{
	uint64_t changes[3] = { 0x0102030405060708, 0x1112131415161718, 0x2122232425262728 };
	uint8_t header[50];
	struct ibv_flow_action *action;
	int i;

	for (i = 1; i <= 3; i++) {
		action = mlx5dv_create_flow_action_modify_header(context, i * sizeof changes[0], changes, i - 1);
		CHECK(action && ibv_destroy_flow_action(action) == 0);
	}
	memset(header, 0x5a, sizeof header);
	for (i = 0; i < 4; i++) {
		action = mlx5dv_create_flow_action_packet_reformat(context, i ? 14 * i : 0, i ? header : NULL, i, i & 1);
		CHECK(action && ibv_destroy_flow_action(action) == 0);
	}
	CHECK(!mlx5dv_create_flow_action_packet_reformat(context, 14, NULL, 1, 0) && errno == EINVAL);
	CHECK(!mlx5dv_create_flow_action_packet_reformat(context, 0, header, 1, 0) && errno == EINVAL);
}

/* Rules whose actions change headers, of frames that go to a queue pair, are dropped, or go on. */
static void rules(void)
{
	struct {
		size_t size;
		uint8_t bytes[64];
	} mask = { .size = 64, .bytes[8] = 0xff }, value = { .size = 64, .bytes[8] = 2 };
	struct mlx5dv_flow_matcher_attr by = { .type = IBV_FLOW_ATTR_NORMAL, .match_criteria_enable = 1,
		.match_mask = (void *)&mask };
	struct mlx5dv_flow_matcher *matcher = mlx5dv_create_flow_matcher(context, &by);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RAW_PACKET, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	uint64_t change = 0x0102030405060708;
	struct ibv_flow_action *first = mlx5dv_create_flow_action_modify_header(context, sizeof change, &change, 0);
	struct ibv_flow_action *second = mlx5dv_create_flow_action_packet_reformat(context, 0, NULL, 0, 0);
	struct mlx5dv_flow_action_attr list[4] = { { .type = MLX5DV_FLOW_ACTION_IBV_FLOW_ACTION, .action = first },
		{ .type = MLX5DV_FLOW_ACTION_IBV_FLOW_ACTION, .action = second },
		{ .type = MLX5DV_FLOW_ACTION_TAG, .tag_value = 0x123456 } };
	struct ibv_flow *flow;
	int i, count;

	CHECK(matcher && qp && first && second);
	for (i = 0; i < 4; i++) {
		count = 3;
		if (i == 1)
			list[count++] = (struct mlx5dv_flow_action_attr){ .type = MLX5DV_FLOW_ACTION_DEST_IBV_QP, .qp = qp };
		if (i == 2)
			list[count++] = (struct mlx5dv_flow_action_attr){ .type = MLX5DV_FLOW_ACTION_DROP };
		if (i == 3)
			list[count++] = (struct mlx5dv_flow_action_attr){ .type = MLX5DV_FLOW_ACTION_DEFAULT_MISS };
		flow = mlx5dv_create_flow(matcher, (void *)&value, count, list);
		CHECK(flow && ibv_destroy_flow(flow) == 0);
	}
	CHECK(ibv_destroy_flow_action(first) == 0 && ibv_destroy_flow_action(second) == 0);
	CHECK(mlx5dv_destroy_flow_matcher(matcher) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	anchors();
	operations();
	actions();
	rules();
	CHECK(ibv_close_device(context) == 0);
	ibv_free_device_list(list);
	puts("kept");
	return 0;
}
#endif
