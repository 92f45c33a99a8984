//! Delivers events of the core to event queues.

use super::Firmware;
use uverbs_soft::core::{Event, EventObject};
use uverbs_soft_adapter::firmware::event::Report;

/// The one port.
const PORT: u8 = 1;

impl Firmware {
    /// Delivers all events that the core has reported.
    pub(crate) fn deliver_events(&mut self) {
        while let Some(event) = self.core.take_event() {
            match (event, Report::of(event)) {
                (Event::Completion { cqn }, Some(report)) => {
                    let queue = self.objects.event_queue_of(cqn.0);
                    queue.into_iter().for_each(|queue| self.post_event(queue, &report));
                }
                (Event::Async { object: EventObject::Qp(qpn), .. }, Some(report)) => {
                    self.announce(&report.of_queue(self.objects.queue_type(qpn.0)));
                }
                (_, Some(report)) => self.announce(&report),
                (event, None) => self.warn(format_args!("the driver knows no event for {event:?}")),
            }
        }
    }

    /// Reports to the driver whether the port is up.
    pub(super) fn announce_port(&mut self) {
        self.announce(&Report::of_port(PORT, self.port.is_up()));
    }
}
