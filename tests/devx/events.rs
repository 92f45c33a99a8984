//! Events of objects that commands create.

use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use uverbs::devx::{DevxEventChannelFlags, EventChannel, UarKind};
use uverbs_soft_adapter::firmware::layout::context::qpc;

use crate::firmware::Cq;
use crate::queue_pairs::{Qp, path_of};
use crate::setup;

/// Types of events.
const COMPLETION: u16 = 0x00;
const COMMUNICATION_ESTABLISHED: u16 = 0x02;
pub(crate) const KEY_VIOLATION: u16 = 0x1d;
const PORT_CHANGE: u16 = 0x09;

/// Makes every read of a channel return at once.
pub(crate) fn never_wait(channel: &EventChannel) {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(channel.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
}

/// Waits for an event.
pub(crate) fn event<const N: usize>(channel: &EventChannel) -> [u8; N] {
    let mut polled = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    let ready = poll(&mut polled, PollTimeout::from(60_000u16));
    assert_eq!(ready, Ok(1), "no event came");
    let mut event = [0xaa; N];
    assert_eq!(channel.read(&mut event).unwrap(), N);
    event
}

pub(crate) fn no_event(channel: &EventChannel) {
    let error = channel.read(&mut [0; 72]).unwrap_err();
    assert_eq!(error.errno(), nix::errno::Errno::EAGAIN as i32, "{error}");
}

#[test]
fn events_of_objects_come_through_channels() {
    let Some((setup, devx)) = setup() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let (mut cq_a, mut cq_b) = (Cq::new(&devx, &uar), Cq::new(&devx, &uar));
    let pd = setup.pd.number();
    let (a, b) = (Qp::new(&devx, &uar, pd, &cq_a), Qp::new(&devx, &uar, pd, &cq_b));
    let whole = devx.event_channel(DevxEventChannelFlags::empty()).unwrap();
    let cookies = devx.event_channel(DevxEventChannelFlags::OMIT_DATA).unwrap();
    let signal = EventFd::new().unwrap();
    [&whole, &cookies].into_iter().for_each(never_wait);
    whole.subscribe(Some(cq_b.object.kernel_handle()), &[COMPLETION], 5).unwrap();
    cookies.subscribe(Some(cq_b.object.kernel_handle()), &[COMPLETION], 6).unwrap();
    let queue = b.object.kernel_handle();
    cookies.subscribe(Some(queue), &[COMMUNICATION_ESTABLISHED, 0x13], 7).unwrap();
    whole.subscribe_eventfd(signal.as_fd(), Some(queue), COMMUNICATION_ESTABLISHED).unwrap();
    a.connect(b.number, &path);
    b.step(0x502, &path, &[(qpc::RRE, 1), (qpc::RWE, 1)]);
    b.ready_to_receive(a.number, &path);

    let (from, to) = (setup.region(64), setup.region(64));
    for index in 0..2 {
        cq_b.arm(index, &uar);
        b.receive(index, &to);
        a.send(index, &from, &uar);
        assert_eq!((cq_a.opcode(), cq_b.opcode()), (0, 2));
    }
    for _ in 0..2 {
        assert_eq!(whole.read(&mut [0; 71]).unwrap_err().errno(), libc::EINVAL);
        let told: [u8; 72] = event(&whole);
        assert_eq!(told[..8], 5u64.to_ne_bytes());
        assert_eq!(told[8 + 1], COMPLETION as u8);
        assert_eq!(told[8 + 32 + 24..][..4], cq_b.number.to_be_bytes());
    }
    no_event(&whole);
    // Cookies do not accumulate: each is reported once until it is read.
    let mut told = [event::<8>(&cookies), event::<8>(&cookies)];
    told.sort_unstable();
    assert_eq!(told, [6u64.to_ne_bytes(), 7u64.to_ne_bytes()]);
    no_event(&cookies);
    assert_eq!(signal.read(), Ok(1), "communication is established once");

    for (queue, cq) in [(a, cq_a), (b, cq_b)] {
        queue.close();
        cq.close();
    }
}

#[test]
fn only_events_that_a_program_may_have_are_subscribed_to() {
    let Some((_setup, devx)) = setup() else { return };
    let channel = devx.event_channel(DevxEventChannelFlags::empty()).unwrap();
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let handle = Some(cq.object.kernel_handle());
    let invalid = |result: uverbs::Result<()>| {
        assert_eq!(result.map_err(|error| error.errno()), Err(22));
    };
    channel.subscribe(None, &[PORT_CHANGE], 1).unwrap();
    channel.subscribe(handle, &[COMPLETION; 16], 1).unwrap();
    invalid(channel.subscribe(None, &[COMPLETION], 1));
    invalid(channel.subscribe(handle, &[PORT_CHANGE], 1));
    invalid(channel.subscribe(handle, &[COMPLETION; 17], 1));
    let no_eventfd = std::fs::File::open("/dev/null").unwrap();
    invalid(channel.subscribe_eventfd(no_eventfd.as_fd(), handle, COMPLETION));
    cq.close();
}
