/* Rare questions and requests. On the same device libibverbs and libmlx5 give these answers, but for one that is
 * named. */
#include "common.h"
#include <arpa/inet.h>

/* Of driver.h, which not all packages install. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static void queries(void)
{
	const struct verbs_context *table = verbs_get_ctx(context);
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	struct ibv_device_attr_ex device;
	struct ibv_gid_entry entries[64];
	uint16_t pkey;
	char text[16];
	int size;

	CHECK(table->query_device_ex(context, NULL, &device, sizeof device.orig_attr - 1) == EINVAL);
	CHECK(table->query_device_ex(context, &input, &device, sizeof device) == EINVAL);
	CHECK(table->query_device_ex(context, NULL, &device, sizeof device.orig_attr) == 0);

	/* An entry of an older program is cut, as the kernel does. */
	memset(entries, 0xa5, sizeof entries);
	size = _ibv_query_gid_table(context, entries, 64, 0, 20);
	CHECK(size == ibv_query_gid_table(context, entries, 64, 0) && size > 0);
	CHECK(_ibv_query_gid_table(context, entries, 64, 0, 0) == -EINVAL);
	CHECK(_ibv_query_gid_ex(context, 1, gid_index(), entries, 0, sizeof *entries - 1) == EINVAL);

	CHECK(ibv_query_pkey(context, 1, -1, &pkey) == -1 && errno == ENOENT);
	CHECK(ibv_query_pkey(context, 1, 70000, &pkey) == -1 && errno == ENOENT);
	CHECK(ibv_get_pkey_index(context, 1, 0x1234) == -1 && errno == ENOENT);

	/* "1: CA": six bytes with the end of the string. */
	for (size = 1; size < 16; size++) {
		int length;
		memset(text, 'x', sizeof text);
		length = ibv_read_sysfs_file(context->device->ibdev_path, "node_type", text, size);
		CHECK(size < 6 ? length == -1 : length == 5 && strcmp(text, "1: CA") == 0);
		CHECK(size < 6 ? text[size] == 'x' : 1);
	}
}

static uint16_t checksum(const unsigned char *header)
{
	uint32_t sum = 0;
	for (int i = 0; i < 20; i += 2)
		sum += header[i] << 8 | header[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	return htons(~((sum & 0xffff) + (sum >> 16)));
}

/* The entry of the port's table with this GID and type; -1 if there is none. */
static int index_of(const union ibv_gid *gid, uint32_t type)
{
	struct ibv_gid_entry entries[64];
	ssize_t count = ibv_query_gid_table(context, entries, 64, 0);
	for (ssize_t i = 0; i < count; i++)
		if (!memcmp(&entries[i].gid, gid, 16) && entries[i].gid_type == type)
			return entries[i].gid_index;
	return -1;
}

/* The address that answers a datagram, from the 40 bytes before its payload. */
static void routing_headers(void)
{
	union { struct ibv_grh grh; unsigned char bytes[40]; } header;
	unsigned char *ip = header.bytes + 20;
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH, .sl = 3 };
	struct ibv_ah_attr attr;
	union ibv_gid own;
	uint16_t sum;

	CHECK(ibv_query_gid(context, 1, gid_index(), &own) == 0 && own.raw[10] == 0xff);
	/* The bytes before an IPv4 header are undefined: they tell neither class nor that it is IPv6. Nor the label,
	 * which libibverbs takes from there. */
	for (int first = 0; first < 256; first++) {
		memset(&header, first, sizeof header);
		memcpy(ip, "\x45\x68\0\x3c\0\0\x40\0\x40\x11\0\0\x0a\0\0\x09", 16);
		memcpy(ip + 16, own.raw + 12, 4);
		sum = checksum(ip);
		memcpy(ip + 10, &sum, 2);
		CHECK(ibv_init_ah_from_wc(context, 1, &wc, &header.grh, &attr) == 0);
		CHECK(attr.is_global && attr.sl == 3 && attr.grh.sgid_index == gid_index());
		CHECK(attr.grh.traffic_class == 0x68 && attr.grh.flow_label == 0);
		CHECK(memcmp(attr.grh.dgid.raw + 10, "\xff\xff\x0a\0\0\x09", 6) == 0 && attr.grh.hop_limit == 0x40);
	}

	/* A GRH tells the version of RoCE, and so the GID that the answer comes from. */
	memset(&header, 0, sizeof header);
	header.grh.version_tclass_flow = htonl(6u << 28 | 0x68 << 20 | 0x1234);
	header.grh.dgid = own;
	header.grh.sgid.raw[0] = 0xfe;
	header.grh.next_hdr = 17;
	header.grh.hop_limit = 9;
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, &header.grh, &attr) == 0);
	CHECK(attr.grh.sgid_index == index_of(&own, IBV_GID_TYPE_ROCE_V2));
	CHECK(attr.grh.traffic_class == 0x68 && attr.grh.flow_label == 0x1234 && attr.grh.dgid.raw[0] == 0xfe);
	CHECK(attr.grh.hop_limit == 9);
	header.grh.next_hdr = 0x1b;
	CHECK(index_of(&own, IBV_GID_TYPE_ROCE_V1) >= 0);
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, &header.grh, &attr) == 0);
	CHECK(attr.grh.sgid_index == index_of(&own, IBV_GID_TYPE_ROCE_V1));
	header.grh.next_hdr = 6;
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, &header.grh, &attr) == -1 && errno == EPROTONOSUPPORT);
	header.grh.next_hdr = 17;
	header.grh.dgid.raw[0] = 0xff;
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, &header.grh, &attr) == -1 && errno == EINVAL);

	/* Without the flag the header counts for nothing. */
	wc.wc_flags = 0;
	wc.slid = 7;
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, &header.grh, &attr) == 0);
	CHECK(!attr.is_global && attr.dlid == 7 && attr.sl == 3 && attr.port_num == 1);
}

/* A header that no answer can be made from: as much of the address is written as the header tells. */
static void refused_headers(void)
{
	static const struct { unsigned char version, next, to; int error; unsigned label, from; } cases[] = {
		{ 0x60, 17, 0x20, EINVAL, 0x1234, 0xfe }, /* not an address of the port */
		{ 0x60, 0x1b, 0x20, EINVAL, 0x1234, 0xfe },
		{ 0x60, 17, 0xff, EINVAL, 0x1234, 0 }, /* a group */
		{ 0x60, 6, 0x20, EPROTONOSUPPORT, 0x1234, 0xfe },
		{ 0x60, 6, 0xff, EINVAL, 0x1234, 0 },
		{ 0, 17, 0x20, EPROTONOSUPPORT, 0x1234, 0 },
	};
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH, .sl = 3, .slid = 7, .dlid_path_bits = 2 };
	struct ibv_ah_attr attr;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ibv_grh grh = { .version_tclass_flow = htonl((unsigned)cases[i].version << 24 | 0x1234),
			.next_hdr = cases[i].next, .hop_limit = 9, .sgid.raw = { 0xfe }, .dgid.raw = { cases[i].to } };
		memset(&attr, 0xee, sizeof attr);
		CHECK(ibv_init_ah_from_wc(context, 1, &wc, &grh, &attr) == -1 && errno == cases[i].error);
		CHECK(attr.is_global == 1 && attr.dlid == 7 && attr.sl == 3 && attr.src_path_bits == 2 && attr.port_num == 1);
		CHECK(attr.grh.flow_label == cases[i].label && attr.grh.dgid.raw[0] == cases[i].from && !attr.grh.hop_limit);
	}
}

/* Regions of all memory, and of files that are none. */
static void regions(void)
{
	const int odp = IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE;
	struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, odp);

	CHECK(all && all->addr == NULL && all->length == SIZE_MAX && ibv_dereg_mr(all) == 0);
	CHECK(!ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, buffer, SIZE_MAX, odp) && errno == EINVAL);
	CHECK(!ibv_reg_mr_iova(pd, NULL, SIZE_MAX, 4096, odp) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE) && errno == EBADF);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 1, -1, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
}

/* Headers that libmlx5 has specifications for, and rules on them that the device does not match. */
static void rules(struct ibv_cq *cq)
{
	static const struct { unsigned type, size; } unsupported[] = {
		{ IBV_FLOW_SPEC_VXLAN_TUNNEL, sizeof(struct ibv_flow_spec_tunnel) },
		{ IBV_FLOW_SPEC_GRE, sizeof(struct ibv_flow_spec_gre) },
		{ IBV_FLOW_SPEC_MPLS, sizeof(struct ibv_flow_spec_mpls) },
		{ IBV_FLOW_SPEC_ESP, sizeof(struct ibv_flow_spec_esp) },
		{ IBV_FLOW_SPEC_MPLS | IBV_FLOW_SPEC_INNER, sizeof(struct ibv_flow_spec_mpls) },
		{ IBV_FLOW_SPEC_ETH | IBV_FLOW_SPEC_INNER, sizeof(struct ibv_flow_spec_eth) },
		{ IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_INNER, sizeof(struct ibv_flow_spec_tcp_udp) },
	};
	struct { struct ibv_flow_attr attr; struct ibv_flow_spec spec; } __attribute__((packed, aligned(8))) rule;
	struct ibv_flow_attr *first = (void *)&rule;
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET,
		.cap = { .max_recv_wr = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init), *ud;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_flow *flow;

	CHECK(qp && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == 0);
	memset(&rule, 0, sizeof rule);
	rule.attr.num_of_specs = rule.attr.port = 1;
	for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
		rule.spec.hdr.type = unsupported[i].type;
		rule.spec.hdr.size = unsupported[i].size;
		rule.attr.size = sizeof rule.attr + unsupported[i].size;
		errno = 0;
		CHECK(!ibv_create_flow(qp, first) && errno == EOPNOTSUPP);
	}
	/* Tunnels that libibverbs knows as outer headers only. */
	rule.spec.hdr.type = IBV_FLOW_SPEC_VXLAN_TUNNEL | IBV_FLOW_SPEC_INNER;
	rule.spec.hdr.size = sizeof(struct ibv_flow_spec_tunnel);
	CHECK(!ibv_create_flow(qp, first) && errno == EINVAL);
	rule.spec.hdr.type = IBV_FLOW_SPEC_GRE | IBV_FLOW_SPEC_INNER;
	CHECK(!ibv_create_flow(qp, first) && errno == EINVAL);
	rule.spec.hdr.type = IBV_FLOW_SPEC_IPV4_EXT;
	rule.spec.hdr.size = sizeof(struct ibv_flow_spec_ipv4_ext);
	rule.spec.ipv4_ext.mask.ttl = 0xff;
	CHECK(!ibv_create_flow(qp, first) && errno == EOPNOTSUPP);
	rule.spec.hdr.type = IBV_FLOW_SPEC_IPV6;
	rule.spec.hdr.size = sizeof(struct ibv_flow_spec_ipv6);
	memset(&rule.spec.ipv6.val, 0, sizeof rule.spec.ipv6 - 8);
	rule.spec.ipv6.mask.hop_limit = 0xff;
	CHECK(!ibv_create_flow(qp, first) && errno == EOPNOTSUPP);
	/* The size of these two tells where their masks begin. */
	rule.spec.hdr.size = 2 * 39 + 6;
	CHECK(!ibv_create_flow(qp, first) && errno == EINVAL);
	rule.spec.hdr.type = IBV_FLOW_SPEC_IPV4_EXT;
	rule.spec.hdr.size = 2 * 12 + 6;
	CHECK(!ibv_create_flow(qp, first) && errno == EINVAL);
	rule.spec.hdr.type = IBV_FLOW_SPEC_VXLAN_TUNNEL;
	rule.spec.hdr.size = 14;
	CHECK(!ibv_create_flow(qp, first) && errno == EINVAL);
	/* That of others only tells where the next one begins. */
	memset(&rule.spec, 0, sizeof rule.spec);
	rule.spec.hdr.type = IBV_FLOW_SPEC_ETH;
	memset(rule.spec.eth.mask.dst_mac, 0xff, 6);
	for (unsigned size = 0; size <= sizeof rule.spec.eth; size++) {
		rule.spec.hdr.size = size;
		rule.attr.flags = 0;
		flow = ibv_create_flow(qp, first);
		CHECK(flow && ibv_destroy_flow(flow) == 0);
		/* The header has no such flag. */
		rule.attr.flags = 1;
		CHECK(!ibv_create_flow(qp, first) && errno == EINVAL);
	}
	rule.attr.flags = 0;
	/* Only IPoIB's queue pairs of this type have rules. */
	init.qp_type = IBV_QPT_UD;
	ud = ibv_create_qp(pd, &init);
	CHECK(ud && !ibv_create_flow(ud, first) && errno == EOPNOTSUPP && ibv_destroy_qp(ud) == 0);
	/* Nothing that any release knows. */
	rule.spec.hdr.type = 0x99;
	CHECK(!ibv_create_flow(qp, first) && errno == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}

int main(void)
{
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_ece ece = { .vendor_id = 0 };

	open_soft();
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(cq);
	queries();
	routing_headers();
	refused_headers();
	regions();
	rules(cq);
	qp = make_qp(cq, 4, 0);
	CHECK(ibv_set_ece(qp, &ece) == EOPNOTSUPP);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	close_soft();
	puts("kept");
	return 0;
}
