//! The rdma_cm node, used through its write commands.
#![allow(unsafe_code)]

mod attacks;
mod descriptors;
mod paths;
mod replay;
mod rules;
mod states;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs_uapi::cm::event::{EventResp, EventType, GetEvent};
use uverbs_uapi::cm::{Command, Message};
use zerocopy::{FromZeros, IntoBytes};

use super::{CmFile, RdmaCm};
use crate::chardev::{DeviceBuilder, GidEntry, GidType, SoftDevice};
use crate::core::Mtu;
use crate::wire::{NoWire, Station, Waker};

/// An open file and the program's descriptor.
struct Client {
    file: CmFile,
    fd: OwnedFd,
}

impl Client {
    fn open(host: &RdmaCm) -> Self {
        let (file, fd) = host.open(true).unwrap();
        Self { file, fd }
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        // SAFETY: the bytes are readable, and the tests' response addresses are of live buffers or
        // not mapped.
        unsafe { self.file.write(self.fd.as_fd(), bytes.as_ptr(), bytes.len()) }
    }

    fn send<C: Command>(&self, body: &C) -> Result<(), Errno> {
        let message = Message::new(body);
        let length = message.as_bytes().len();
        self.write(message.as_bytes()).map(|written| assert_eq!(written, length))
    }

    /// Sends a command with a response; `body` gets the response's address.
    fn ask<C: Command>(&self, body: impl FnOnce(u64) -> C) -> Result<C::Response, Errno> {
        let mut answer = C::Response::new_zeroed();
        let body = body(answer.as_mut_bytes().as_mut_ptr() as u64);
        self.send(&body).map(|()| answer)
    }

    fn event(&self) -> Result<EventResp, Errno> {
        self.ask(|response| GetEvent { response })
    }

    #[track_caller]
    fn expect(&self, event: EventType) -> EventResp {
        let got = self.event().unwrap();
        assert_eq!(got.event, event, "status {}", got.status());
        got
    }

    /// The result of poll(2) of the descriptor.
    fn poll(&self, timeout: PollTimeout) -> PollFlags {
        let asked = PollFlags::POLLIN | PollFlags::POLLOUT;
        let mut fds = [PollFd::new(self.fd.as_fd(), asked)];
        poll(&mut fds, timeout).unwrap();
        fds[0].revents().unwrap()
    }

    fn set_nonblocking(&self) {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        fcntl(self.fd.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    }

    fn descriptor(&self) -> u32 {
        self.fd.as_raw_fd() as u32
    }
}

/// A device without a wire at this address, with the GID table of the recorded device.
fn builder(address: [u8; 4]) -> DeviceBuilder {
    let station = Station::new(address.into()).unwrap();
    let (local, ipv4) = (station.link_local_gid(), station.gid());
    let entry = |gid| GidEntry { gid, kind: GidType::RoceV2 };
    SoftDevice::builder("soft0")
        .wire(Box::new(NoWire), Waker::new().unwrap().into(), station)
        .gids(vec![entry(local), entry(ipv4)])
        .active_mtu(Mtu::M1024)
}

/// A host with one device, which is its own peer. Its connection manager treats every station as a
/// neighbour.
fn host(address: [u8; 4]) -> (RdmaCm, SoftDevice) {
    host_of(builder(address))
}

/// As [`host`], but the neighbours are those of the machine's network.
fn host_on_network(address: [u8; 4]) -> (RdmaCm, SoftDevice) {
    let (waker, station) = (Waker::new().unwrap().into(), Station::new(address.into()).unwrap());
    host_of(builder(address).wire_to_network(Box::new(NoWire), waker, station))
}

fn host_of(builder: DeviceBuilder) -> (RdmaCm, SoftDevice) {
    let device = builder.build().unwrap();
    (RdmaCm::new(std::slice::from_ref(&device)).unwrap(), device)
}
