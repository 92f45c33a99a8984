/* A program that has closed its standard streams before it opens a device, and that writes texts to their numbers. The
 * library's files may have these numbers then, but no text becomes an event. */
#include "common.h"

int main(void)
{
	static const char text[] = "a text for standard output or standard error\n";
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_async_event event;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	void *cq_context;
	int stream, said = fcntl(1, F_DUPFD, 100);

	stderr = fdopen(fcntl(2, F_DUPFD, 100), "w");
	CHECK(said >= 0 && stderr && list && list[0]);
	for (stream = 0; stream < 3; stream++)
		close(stream);
	context = ibv_open_device(list[0]);
	CHECK(context && (channel = ibv_create_comp_channel(context)));
	for (stream = 0; stream < 3; stream++)
		(void)!write(stream, text, sizeof text);
	CHECK(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0 && fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	CHECK(ibv_get_cq_event(channel, &cq, &cq_context) == -1 && errno == EAGAIN);
	CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_close_device(context) == 0);
	dprintf(said, "kept\n");
	return 0;
}
