/* NCCL's own InfiniBand transport between two ends in this process, in memory of the host, since it needs no GPU for that.
 * The transport is not exported: its address comes from the library's symbol table.
 * nccl LIBRARY OFFSET: OFFSET is that of `ncclNetIb` from `ncclGetVersion`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what)                                                                         \
	do {                                                                                \
		int result = (what);                                                        \
		if (result)                                                                 \
			return fprintf(stderr, "line %d: %s: %d\n", __LINE__, #what, result), 1; \
	} while (0)

/* As far as it is used here, `ncclNet_v12_t` of plugin/net/net_v12.h. */
typedef void log_function(int level, unsigned long flags, const char *file, int line, const char *format, ...);
struct transport {
	const char *name;
	int (*init)(void **context, uint64_t id, void *config, log_function *log, void *profiler);
	int (*devices)(int *count);
	int (*properties)(int device, void *properties);
	int (*listen)(void *context, int device, void *handle, void **listener);
	int (*connect)(void *context, int device, void *handle, void **sender, void **unused);
	int (*accept)(void *listener, void **receiver, void **unused);
	int (*register_memory)(void *end, void *data, size_t size, int type, void **memory);
	int (*register_dmabuf)(void *end, void *data, size_t size, int type, uint64_t offset, int fd, void **memory);
	int (*deregister)(void *end, void *memory);
	int (*send)(void *sender, void *data, size_t size, int tag, void *memory, void *profiled, void **request);
	int (*receive)(void *receiver, int count, void **data, size_t *sizes, int *tags, void **memory, void **profiled,
		       void **request);
	int (*flush)(void *receiver, int count, void **data, int *sizes, void **memory, void **request);
	int (*test)(void *request, int *done, int *sizes);
	int (*close_sender)(void *sender);
	int (*close_receiver)(void *receiver);
	int (*close_listener)(void *listener);
};

static void say(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
	va_list arguments;
	(void)flags;
	fprintf(stderr, "%d %s:%d ", level, file, line);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

static char from[1 << 20], to[1 << 20];

/* One message of `size` bytes, which must arrive whole. */
static int message(struct transport *net, void *sender, void *receiver, void *source, void *target, size_t size, int seed)
{
	void *sent = NULL, *received = NULL, *data = to;
	int done = 0, got = 0, tag = 7;
	size_t i;

	for (i = 0; i < size; i++)
		from[i] = (char)(i * 7 + seed);
	while (!received)
		CHECK(net->receive(receiver, 1, &data, &size, &tag, &target, NULL, &received));
	while (!sent)
		CHECK(net->send(sender, from, size, tag, source, NULL, &sent));
	while (!done)
		CHECK(net->test(sent, &done, NULL));
	for (done = 0; !done;)
		CHECK(net->test(received, &done, &got));
	CHECK(got != (int)size);
	CHECK(memcmp(from, to, size));
	return 0;
}

int main(int count, char **arguments)
{
	void *library = count == 3 ? dlopen(arguments[1], RTLD_NOW) : NULL, *known, *context = NULL, *listener, *unused = NULL;
	void *sender = NULL, *receiver = NULL, *source, *target;
	int traffic_class = -1, devices = 0, version = 0, i;
	char handle[256] = { 0 };
	struct transport *net;

	if (!library || !(known = dlsym(library, "ncclGetVersion")))
		return fprintf(stderr, "%s\n", dlerror()), 1;
	net = (void *)((char *)known + strtoull(arguments[2], NULL, 0));
	CHECK(((int (*)(int *))known)(&version));
	CHECK(strcmp(net->name, "IB"));
	CHECK(net->init(&context, 1, &traffic_class, say, NULL));
	CHECK(net->devices(&devices));
	CHECK(devices < 1);
	CHECK(net->listen(context, 0, handle, &listener));
	while (!sender || !receiver) {
		if (!sender)
			CHECK(net->connect(context, 0, handle, &sender, &unused));
		if (!receiver)
			CHECK(net->accept(listener, &receiver, &unused));
	}
	/* NCCL_PTR_HOST */
	CHECK(net->register_memory(sender, from, sizeof from, 1, &source));
	CHECK(net->register_memory(receiver, to, sizeof to, 1, &target));
	for (i = 0; i < 100; i++)
		CHECK(message(net, sender, receiver, source, target, i % 4 ? 1000u * (i % 4) : sizeof from, i));
	CHECK(net->deregister(sender, source));
	CHECK(net->deregister(receiver, target));
	CHECK(net->close_sender(sender));
	CHECK(net->close_receiver(receiver));
	CHECK(net->close_listener(listener));
	printf("NCCL %d: %d device, 100 messages\n", version, devices);
	fflush(stdout);
	_exit(0);
}
