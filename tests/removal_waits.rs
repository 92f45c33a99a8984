//! The device is removed while a thread is inside a verb that waits. Each verb must return, with
//! the reason.

mod common;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::PATIENCE;
use uverbs::cm::{Connection, Connector, Listener};
use uverbs::devx::DevxEventChannelFlags;
use uverbs::ethernet::RxQueue;
use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{Context, Device, Error, ErrorKind, op};

const FOREVER: Option<Duration> = Some(Duration::MAX);

fn device() -> (Arc<SoftDevice>, Context) {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let context = Device::from_shared_soft(soft.clone()).open().unwrap();
    (soft, context)
}

/// Removes the device while another thread is in `wait`, or about to call it.
fn ends<T: Send + 'static>(soft: &SoftDevice, wait: impl FnOnce() -> T + Send + 'static) -> T {
    let ((begun, begins), (ended, end)) = (mpsc::channel(), mpsc::channel());
    thread::spawn(move || {
        begun.send(()).unwrap();
        ended.send(wait())
    });
    begins.recv().unwrap();
    thread::sleep(Duration::from_millis(20));
    soft.remove();
    end.recv_timeout(PATIENCE).expect("the wait ends")
}

fn is_gone(error: &Error) {
    assert_eq!((error.kind(), error.errno()), (ErrorKind::DeviceGone, libc::EIO), "{error}");
}

#[test]
fn waits_for_frames() {
    for timeout in [None, FOREVER, Some(PATIENCE)] {
        let (soft, context) = device();
        let mut rx: RxQueue = context.alloc_pd().unwrap().create_rx_queue(16).build().unwrap();
        is_gone(&ends(&soft, move || rx.wait(0, timeout).map(drop)).unwrap_err());
    }
}

#[test]
fn waits_for_completions_and_events() {
    let (soft, context) = device();
    let channel = context.create_completion_channel().unwrap();
    is_gone(&ends(&soft, move || channel.get_event().map(drop)).unwrap_err());
    let (soft, context) = device();
    let (pd, channel) = (context.alloc_pd().unwrap(), context.create_completion_channel().unwrap());
    let mut cq = context.create_raw_cq(16).channel(&channel).build().unwrap();
    let mut qp = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build().unwrap();
    let peer = qp.endpoint();
    qp.connect(&peer).unwrap();
    cq.arm();
    // SAFETY: no memory is named.
    unsafe { qp.post_send(1, op::Nop, (), PostFlags::SIGNALED).unwrap() };
    let event = channel.get_event().unwrap().detach();
    drop(qp);
    let (acknowledge, may_acknowledge) = mpsc::channel::<()>();
    let holder = thread::spawn(move || {
        let _ = may_acknowledge.recv();
        drop(event);
    });
    // The program still has the event after the device is removed.
    let destroyed = ends(&soft, move || {
        let late = cq.destroy_within(Duration::from_millis(50)).unwrap_err();
        assert_eq!(late.error.kind(), ErrorKind::TimedOut, "{late}");
        drop(acknowledge);
        late.object.destroy_within(Duration::MAX)
    });
    destroyed.unwrap();
    holder.join().unwrap();
}

#[test]
fn waits_for_firmware() {
    for flags in [DevxEventChannelFlags::empty(), DevxEventChannelFlags::OMIT_DATA] {
        let (soft, context) = device();
        // SAFETY: no command is sent.
        let channel = unsafe { context.devx() }.event_channel(flags).unwrap();
        is_gone(&ends(&soft, move || channel.read(&mut [0; 72]).map(drop)).unwrap_err());
    }
    let (soft, context) = device();
    // SAFETY: no command is sent.
    let channel = unsafe { context.devx() }.command_channel().unwrap();
    is_gone(&ends(&soft, move || channel.read(&mut [0; 72]).map(drop)).unwrap_err());
}

fn address_of(context: &Context) -> SocketAddr {
    let gids = context.gid_table(1).unwrap();
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).expect("an IPv4 address");
    SocketAddr::new(IpAddr::from(ipv4), 0)
}

fn listener(context: &Context) -> Listener {
    Listener::builder().context(context).bind(address_of(context)).unwrap()
}

fn pair(context: &Context) -> (Connection, Connection) {
    let mut listener = listener(context);
    let to = listener.local_address().unwrap();
    let server = thread::spawn(move || listener.accept_until(Instant::now() + PATIENCE).unwrap());
    let client = Connector::new().context(context).timeout(PATIENCE).connect(to).unwrap();
    (server.join().unwrap(), client)
}

#[test]
fn waits_for_peers() {
    let (soft, context) = device();
    let mut listening = listener(&context);
    is_gone(&ends(&soft, move || listening.accept().map(drop)).unwrap_err());
    // No listener accepts.
    for timeout in [PATIENCE, Duration::MAX] {
        let (soft, context) = device();
        let listening = listener(&context);
        let to = listening.local_address().unwrap();
        let connector = Connector::new().context(&context).timeout(timeout);
        is_gone(&ends(&soft, move || connector.connect(to).map(drop)).unwrap_err());
    }
    for timeout in [None, FOREVER] {
        let (soft, context) = device();
        let (mut server, client) = pair(&context);
        is_gone(&ends(&soft, move || server.wait_disconnected(timeout)).unwrap_err());
        drop(client);
    }
}
