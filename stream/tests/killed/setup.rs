//! The peer is killed before the stream is established.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Instant;

use uverbs::soft::SoftDevice;
use uverbs::{Context, Device};
use uverbs_stream::Config;
use uverbs_stream::tokio::Stream;

use crate::end::End;
use crate::peer::{PATIENCE, address_of};
use crate::process::Peer;

/// A software device with a loopback address.
pub(crate) struct Own {
    soft: SoftDevice,
    pub(crate) context: Context,
    /// File descriptors are counted, so the tests of this process run one after the other.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Own {
    pub(crate) fn new() -> Self {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let soft = SoftDevice::builder("soft0").build().unwrap();
        let context = Device::from_soft(soft.clone()).open().unwrap();
        Self { soft, context, _alone }
    }

    pub(crate) fn config(&self) -> Config {
        // With only one half-open peer, one that is not removed keeps out the next.
        Config::new().context(&self.context).half_open(1).linger(2 * PATIENCE)
    }

    pub(crate) fn listener<E: End>(&self, end: &E) -> E::Listener {
        end.bind(&self.config(), address_of(&self.context))
    }

    /// Asserts that the device and the process have the same objects and files after `work` as
    /// before. The device closes the files of an ended process when it notices the end.
    pub(crate) fn keeps_nothing(&self, work: impl FnOnce()) {
        let before = self.has();
        work();
        let deadline = Instant::now() + PATIENCE;
        while self.has() != before {
            let late = Instant::now() > deadline;
            assert!(!late, "{:?}, before {before:?}", self.has());
            thread::yield_now();
        }
    }

    /// The objects of the device, and the number of this process's file descriptors. Opening an
    /// event file lets the device notice those that the program has closed.
    fn has(&self) -> (String, usize) {
        drop(self.context.create_completion_channel().unwrap());
        (self.objects(), std::fs::read_dir("/proc/self/fd").unwrap().count())
    }

    fn objects(&self) -> String {
        self.soft.inspect(|core| format!("{:?}", core.counts())).unwrap()
    }
}

/// The listener serves the next client, which connects after `meanwhile`.
pub(crate) fn serves_the_next<E: End>(
    (own, end): (&Own, &E),
    listener: &mut E::Listener,
    meanwhile: impl FnOnce(),
) {
    let to = end.address(listener);
    thread::scope(|scope| {
        let accepting = scope.spawn(|| end.accept(listener));
        meanwhile();
        let mut client = end.connect(&own.config(), to).unwrap();
        let mut server = accepting.join().unwrap();
        end.write_all(&mut client, b"next");
        end.finish(&mut client).unwrap();
        let (text, ended) = end.read_all(&mut server);
        assert_eq!((&*text, ended.is_ok()), (&b"next"[..], true));
    });
}

both!(
    a_server_that_ended_before_its_address_is_looked_up_does_not_answer,
    a_server_that_has_the_request_refuses,
    a_server_that_takes_no_note_of_the_confirmation_is_a_reset,
    a_client_that_ends_before_it_confirms_keeps_no_place,
);

/// As documented, resolving the address takes at most two seconds.
fn a_server_that_ended_before_its_address_is_looked_up_does_not_answer(own: &Own, end: &impl End) {
    own.keeps_nothing(|| {
        let (mut peer, to) = Peer::serving("listening");
        peer.kill();
        let asked = Instant::now();
        let error = end.connect(&own.config(), to).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("may have ended"), "{error}");
        assert!(asked.elapsed() < PATIENCE / 2, "it takes {:?}", asked.elapsed());
    });
}

fn a_server_that_has_the_request_refuses(own: &Own, end: &impl End) {
    own.keeps_nothing(|| {
        let (mut peer, to) = Peer::serving("asked");
        let error = thread::scope(|scope| {
            let client = scope.spawn(|| end.connect(&own.config(), to).err().unwrap());
            peer.wait_until_ready();
            peer.kill();
            client.join().unwrap()
        });
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        assert!(error.to_string().contains("ended"), "{error}");
    });
}

fn a_server_that_takes_no_note_of_the_confirmation_is_a_reset(own: &Own, end: &impl End) {
    own.keeps_nothing(|| {
        let (mut peer, to) = Peer::serving("accepted");
        let mut stream = end.connect(&own.config(), to).unwrap();
        peer.wait_until_ready();
        peer.kill();
        let error = end.read(&mut stream, &mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    });
}

/// The client takes the answer after its device has noticed the server's end, as the rejection of
/// another request shows.
#[test]
fn a_server_that_ended_before_its_answer_is_taken_is_a_reset() {
    let own = Own::new();
    let (mut peer, to) = Peer::serving("accepts_when_told");
    let config = own.config();
    let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(async {
        let mut connecting = pin!(Stream::connect_with(&config, to));
        let before = own.objects();
        while own.objects() == before {
            let poll = poll_fn(|task| Poll::Ready(connecting.as_mut().poll(task)));
            assert!(poll.await.is_pending());
            ::tokio::task::yield_now().await;
        }
        peer.wait_until_ready();
        peer.tell();
        peer.wait_until_ready();
        let (before, config) = (own.objects(), config.clone());
        let other = thread::spawn(move || config.connect(to).err().unwrap());
        while own.objects() == before {
            thread::yield_now();
        }
        peer.kill();
        assert_eq!(other.join().unwrap().kind(), ErrorKind::ConnectionRefused);
        connecting.await.err().unwrap()
    });
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

/// The client ends before the listener takes its request, or after it.
fn a_client_that_ends_before_it_confirms_keeps_no_place(own: &Own, end: &impl End) {
    for (stage, is_taken) in
        [("resolved", false), ("asked", false), ("resolved", true), ("answered", true)]
    {
        own.keeps_nothing(|| {
            let mut listener = own.listener(end);
            let to = end.address(&listener);
            let comes_and_goes = || {
                let mut peer = Peer::connecting(stage, to);
                peer.wait_until_ready();
                peer.kill();
            };
            if is_taken {
                serves_the_next((own, end), &mut listener, comes_and_goes);
            } else {
                comes_and_goes();
                serves_the_next((own, end), &mut listener, || ());
            }
        });
    }
}
