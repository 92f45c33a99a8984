//! Runs commands: the list of commands, checks that all of them make, and the commands that create
//! and migrate ids.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::cm::address::{self, SockaddrIn6, SockaddrStorage, address_len};
use uverbs_uapi::cm::event::{EventResp, EventType, GetEvent};
use uverbs_uapi::cm::id::{
    CreateId, CreateIdResp, DestroyId, DestroyIdResp, MigrateId, MigrateResp, SetOption,
};
use uverbs_uapi::cm::path::{PathFlags, PathRecData};
use uverbs_uapi::cm::{Cmd, CmdHdr, IbOption, IdOption, OptionLevel};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::context::{Context, FileNumber};
use super::host::{Shared, State};
use crate::chardev::abi::user_memory::UserMemory;
use crate::runtime;
use uverbs_soft_cm::cma::{Address, CmaError, CmaId, Target};
use uverbs_soft_cm::ib_cm::Path;

/// Commands from this number on are unknown to Linux 6.12.
const COMMANDS: u32 = 23;
/// Longest value of an option (`KMALLOC_MAX_SIZE`).
const MAX_OPTION: u32 = 4 << 20;
/// Most attempts to bind to any port: the number of ports.
const PORTS: u32 = 1 << 16;
/// Bytes of the shortest buffer that GET_EVENT accepts: an event without its newest fields.
pub(super) const EVENT_LEN: usize = EventResp::LENGTHS[1];

/// A command that is running.
pub(super) struct Call<'a> {
    pub(super) state: &'a mut State,
    pub(super) file: FileNumber,
    pub(super) memory: UserMemory,
    /// Where the body is.
    pub(super) body: u64,
    /// Bytes of body, and of the answer's buffer.
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) now: u64,
}

pub(super) fn errno(error: CmaError) -> Errno {
    Errno::from_raw(error.0)
}

impl Call<'_> {
    /// Executes the command that was written (`ucma_write`).
    pub(super) fn run(
        shared: &Shared,
        file: FileNumber,
        memory: UserMemory,
        address: u64,
        length: usize,
    ) -> Result<(), Errno> {
        if length < size_of::<CmdHdr>() {
            return Err(Errno::EINVAL);
        }
        let header: CmdHdr = memory.read_value(address)?;
        if header.cmd.0 >= COMMANDS || usize::from(header.input) + size_of::<CmdHdr>() > length {
            return Err(Errno::EINVAL);
        }
        let mut state = shared.lock();
        let mut call = Call {
            state: &mut state,
            file,
            memory,
            body: address + size_of::<CmdHdr>() as u64,
            input: header.input.into(),
            output: header.output.into(),
            now: runtime::now(),
        };
        let result = call.dispatch(header.cmd);
        state.pump();
        shared.unlock(state);
        result
    }

    fn dispatch(&mut self, command: Cmd) -> Result<(), Errno> {
        match command {
            Cmd::CREATE_ID => self.create_id(),
            Cmd::DESTROY_ID => self.destroy_id(),
            Cmd::BIND_IP => self.bind_ip(),
            Cmd::RESOLVE_IP => self.resolve_ip(),
            Cmd::RESOLVE_ROUTE => self.resolve_route(),
            Cmd::QUERY_ROUTE => self.query_route(),
            Cmd::CONNECT => self.connect(),
            Cmd::LISTEN => self.listen(),
            Cmd::ACCEPT => self.accept(),
            Cmd::REJECT => self.reject(),
            Cmd::DISCONNECT => self.disconnect(),
            Cmd::INIT_QP_ATTR => self.init_qp_attr(),
            Cmd::GET_EVENT => self.get_event(),
            Cmd::SET_OPTION => self.set_option(),
            Cmd::NOTIFY => self.notify(),
            Cmd::JOIN_IP_MCAST => self.join_ip(),
            Cmd::LEAVE_MCAST => self.leave(),
            Cmd::MIGRATE_ID => self.migrate_id(),
            Cmd::QUERY => self.query(),
            Cmd::BIND => self.bind(),
            Cmd::RESOLVE_ADDR => self.resolve_addr(),
            Cmd::JOIN_MCAST => self.join(),
            _ => Err(Errno::ENOSYS),
        }
    }

    /// The whole body, regardless of the length in the header, like the kernel.
    pub(super) fn read<T: FromBytes + IntoBytes>(&self) -> Result<T, Errno> {
        self.memory.read_value(self.body)
    }

    /// ENOSPC if the answer's buffer is smaller than `bytes`.
    pub(super) fn need(&self, bytes: usize) -> Result<(), Errno> {
        if self.output < bytes { Err(Errno::ENOSPC) } else { Ok(()) }
    }

    /// Writes as much of an answer as the program's buffer holds.
    pub(super) fn answer<T: IntoBytes + Immutable>(
        &self,
        address: u64,
        value: &T,
    ) -> Result<(), Errno> {
        let bytes = value.as_bytes();
        self.memory.write(address, &bytes[..bytes.len().min(self.output)])
    }

    /// An id of this file.
    pub(super) fn context(&mut self, number: u32) -> Result<&mut Context, Errno> {
        self.state.contexts.find(self.file, number)
    }

    pub(super) fn id(&mut self, number: u32) -> Result<CmaId, Errno> {
        self.context(number).map(|context| context.id)
    }

    /// An id of this file that is bound to a device (`ucma_get_ctx_dev`).
    pub(super) fn bound_id(&mut self, number: u32) -> Result<CmaId, Errno> {
        let id = self.id(number)?;
        if self.state.cma.has_device(id) { Ok(id) } else { Err(Errno::EINVAL) }
    }

    fn create_id(&mut self) -> Result<(), Errno> {
        self.need(size_of::<CreateIdResp>())?;
        let CreateId { uid, response, ps, qp_type, .. } = self.read()?;
        let id = self.state.cma.create(ps, qp_type).map_err(errno)?;
        let number = self.state.contexts.add(self.file, id, uid);
        self.answer(response, &CreateIdResp { id: number }).inspect_err(|_| {
            self.state.destroy(number);
        })
    }

    fn destroy_id(&mut self) -> Result<(), Errno> {
        self.need(size_of::<DestroyIdResp>())?;
        let DestroyId { response, id, .. } = self.read()?;
        self.state.contexts.of_file(self.file, id)?;
        let events_reported = self.state.destroy(id);
        self.answer(response, &DestroyIdResp { events_reported })
    }

    fn bind_ip(&mut self) -> Result<(), Errno> {
        let address::BindIp { addr, id, .. } = self.read()?;
        let address = ip(&addr)?.ok_or(Errno::EINVAL)?;
        self.bind_to(id, address)
    }

    fn bind(&mut self) -> Result<(), Errno> {
        let address::Bind { id, addr_size, reserved, addr } = self.read()?;
        if reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let address = sized(&addr, addr_size)?;
        self.bind_to(id, address)
    }

    /// Binds an id. At an address that all processes share, the port must not be another process's,
    /// and port 0 chooses a port that no process has.
    pub(super) fn bind_to(&mut self, number: u32, address: Address) -> Result<(), Errno> {
        let id = self.id(number)?;
        let privileged = nix::unistd::geteuid().is_root();
        for _ in 0..PORTS {
            let State { cma, stack, .. } = &mut *self.state;
            cma.bind(id, address, privileged, stack).map_err(errno)?;
            // An id that may share its port claims the port only when it listens.
            let shares = cma.binding(id).is_some_and(|(_, binding)| binding.reuse);
            let Err(taken) = (if shares { Ok(()) } else { self.claim_port(number) }) else {
                return Ok(());
            };
            self.state.cma.unbind(id).map_err(errno)?;
            if address.port() != 0 {
                return Err(taken);
            }
        }
        Err(Errno::EADDRNOTAVAIL)
    }

    /// Claims the port of a bound id, so that other processes' ids cannot bind to it.
    pub(super) fn claim_port(&mut self, number: u32) -> Result<(), Errno> {
        let context = self.context(number)?;
        if context.claims.is_empty() {
            let id = context.id;
            let claims = self.state.stack.claim(&self.state.cma, id).map_err(errno)?;
            self.context(number)?.claims = claims;
        }
        Ok(())
    }

    fn resolve_ip(&mut self) -> Result<(), Errno> {
        let address::ResolveIp { src_addr, dst_addr, id, timeout_ms } = self.read()?;
        let source = ip(&src_addr)?;
        let destination = ip(&dst_addr)?.ok_or(Errno::EINVAL)?;
        self.resolve(id, &Target { source, destination, timeout_ms })
    }

    fn resolve_addr(&mut self) -> Result<(), Errno> {
        let request: address::ResolveAddr = self.read()?;
        if request.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let source = match request.src_size {
            0 => Address::read(&request.src_addr),
            size => Some(sized(&request.src_addr, size)?),
        };
        let destination = sized(&request.dst_addr, request.dst_size)?;
        let timeout_ms = request.timeout_ms;
        self.resolve(request.id, &Target { source, destination, timeout_ms })
    }

    fn resolve(&mut self, number: u32, target: &Target) -> Result<(), Errno> {
        let (id, now) = (self.id(number)?, self.now);
        let State { cma, stack, .. } = &mut *self.state;
        cma.resolve_addr(now, id, target, stack).map_err(errno)
    }

    fn resolve_route(&mut self) -> Result<(), Errno> {
        let address::ResolveRoute { id, timeout_ms } = self.read()?;
        let id = self.bound_id(id)?;
        self.state.cma.resolve_route(id, timeout_ms).map_err(errno)
    }

    /// EAGAIN if there is no event.
    fn get_event(&mut self) -> Result<(), Errno> {
        self.need(EVENT_LEN)?;
        let GetEvent { response } = self.read()?;
        let queue = self.state.queues.get(&self.file).ok_or(Errno::EBADF)?;
        let event = queue.first().ok_or(Errno::EAGAIN)?;
        self.answer(response, &event.response)?;
        self.note_fetched();
        Ok(())
    }

    fn note_fetched(&mut self) {
        let queue = self.state.queues.get_mut(&self.file);
        let Some(event) = queue.and_then(|queue| queue.pop()) else { return };
        if let Some(context) = self.state.contexts.get_mut(event.context) {
            context.reported += 1;
            let is_request = event.response.event == EventType::CONNECT_REQUEST;
            context.backlog += u32::from(is_request);
        }
        let contexts = &mut self.state.contexts;
        if let Some(member) = event.membership.and_then(|number| contexts.member_mut(number)) {
            member.reported += 1;
        }
    }

    /// Moves an id and its events from another file to this one.
    fn migrate_id(&mut self) -> Result<(), Errno> {
        self.need(size_of::<MigrateResp>())?;
        let MigrateId { response, id: number, fd } = self.read()?;
        let from = self.state.file_of(fd as i32)?;
        let events_reported = self.state.contexts.find(from, number)?.reported;
        self.state.contexts.migrate(number, self.file);
        let moved = self.state.queues.get_mut(&from).map(|queue| queue.extract(number, |_| true));
        if let Some(queue) = self.state.queues.get_mut(&self.file) {
            moved.into_iter().flatten().for_each(|event| queue.push(event));
        }
        self.answer(response, &MigrateResp { events_reported })
    }

    fn set_option(&mut self) -> Result<(), Errno> {
        let SetOption { optval, id, level, optname, optlen } = self.read()?;
        let id = self.id(id)?;
        if optlen > MAX_OPTION {
            return Err(Errno::EINVAL);
        }
        let mut value = vec![0; optlen as usize];
        self.memory.read(optval, &mut value)?;
        match level {
            OptionLevel::ID => self.set_id_option(id, IdOption(optname), &value),
            OptionLevel::IB if IbOption(optname) == IbOption::PATH => self.set_path(id, &value),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn set_id_option(&mut self, id: CmaId, option: IdOption, value: &[u8]) -> Result<(), Errno> {
        let byte = || <[u8; 1]>::try_from(value).map(|[byte]| byte).map_err(|_| Errno::EINVAL);
        let flag = || {
            let value = <[u8; 4]>::try_from(value).map_err(|_| Errno::EINVAL)?;
            Ok(i32::from_ne_bytes(value) != 0)
        };
        let cma = &mut self.state.cma;
        match option {
            IdOption::TOS => cma.set_tos(id, byte()?),
            IdOption::REUSEADDR => cma.set_reuse(id, flag()?),
            IdOption::AFONLY => cma.set_family_only(id, flag()?),
            IdOption::ACK_TIMEOUT => cma.set_ack_timeout(id, byte()?),
            _ => return Err(Errno::ENOSYS),
        }
        .map_err(errno)
    }

    /// `ucma_set_ib_path`: the first usable record of several.
    fn set_path(&mut self, id: CmaId, value: &[u8]) -> Result<(), Errno> {
        if value.is_empty() || value.len() % size_of::<PathRecData>() != 0 {
            return Err(Errno::EINVAL);
        }
        let records = value.chunks_exact(size_of::<PathRecData>());
        let usable = records
            .filter_map(|bytes| PathRecData::read_from_bytes(bytes).ok())
            .find(|record| record.flags == PathFlags::USABLE)
            .ok_or(Errno::EINVAL)?;
        let cma = &mut self.state.cma;
        let route = cma.route(id).ok_or(Errno::EINVAL)?;
        cma.set_path(id, Path::of_record(&usable.path_rec, route.addressing)).map_err(errno)
    }
}

/// An address in 28 bytes; none if the family is 0.
pub(super) fn ip(address: &SockaddrIn6) -> Result<Option<Address>, Errno> {
    if address.family == 0 {
        return Ok(None);
    }
    let read = Address::read(&SockaddrStorage::new(address));
    read.filter(|read| !matches!(read, Address::Ib(_))).map(Some).ok_or(Errno::EINVAL)
}

/// An address whose given length must be that of its family.
pub(super) fn sized(address: &SockaddrStorage, size: u16) -> Result<Address, Errno> {
    match address_len(address.family) {
        Some(length) if length == size => Address::read(address).ok_or(Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
}
