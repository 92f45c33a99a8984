//! Debian's libibverbs and libmlx5, unmodified, opened at run time and brought up on a software device that stands still.
//!
//! The fastest configuration that they have: a thread domain, so that no lock is taken, and a CQ for a single thread.

mod abi;
pub(crate) mod cases;
mod hooks;

use std::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use abi::*;
use uverbs::soft::SoftDevice;

use crate::OPERATIONS;
use crate::halted::{self, Known};
use crate::producer::Producer;

/// How to get what is compared with.
pub(crate) const INSTALL: &str =
    "libibverbs and libmlx5 are not installed (Debian: apt install ibverbs-providers)";

const INFINIBAND_PORT: u8 = 1;
const RC: u32 = 2;
const UD: u32 = 4;
const LOCAL_KEY_RIGHTS: c_int = 0xf;

/// A shared library.
struct Library(*mut c_void);

impl Library {
    fn open(name: &CStr) -> Result<Self, String> {
        // SAFETY: a library of the system, whose initializers are its own business.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() { Err(INSTALL.to_owned()) } else { Ok(Self(handle)) }
    }

    /// # Safety
    /// The symbol is a function of type `F`.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        // SAFETY: an open library and a string.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if symbol.is_null() {
            return Err(format!("libibverbs has no {name:?}"));
        }
        // SAFETY: the caller knows the type.
        Ok(unsafe { std::mem::transmute_copy(&symbol) })
    }
}

/// Queues of libmlx5, and the device's part of them.
pub(crate) struct Rival {
    context: *mut Context,
    cq: *mut Cq,
    cqe: Producer,
    cq_ex: *mut CqEx,
    cqe_ex: Producer,
    /// On `cq`.
    qp: *mut Qp,
    qp_ex: *mut QpEx,
    known: Known,
    posted: u32,
    /// On `cq_ex`.
    lazy: *mut Qp,
    lazy_known: Known,
    lazy_posted: u32,
    ud: *mut Qp,
    ud_known: Known,
    ud_posted: u32,
    srq: *mut Srq,
    srq_qp: Known,
    srq_direct: DirectSrq,
    ah: *mut c_void,
    lkey: u32,
    data: *mut u8,
    sends: Vec<SendWr>,
    sges: Vec<Sge>,
    receives: Vec<RecvWr>,
    completions: Vec<WorkCompletion>,
}

impl Rival {
    /// Opens the libraries and makes their queues.
    ///
    /// # Errors
    /// What is missing, in words.
    pub(crate) fn new() -> Result<Self, String> {
        let verbs = Library::open(c"libibverbs.so.1")?;
        let mlx5 = Library::open(c"libmlx5.so.1")?;
        let device = halted::device("uverbs_rival").map_err(|error| error.to_string())?;
        let sysfs = write_sysfs(&device).map_err(|error| error.to_string())?;
        // SAFETY: the only other thread is the device's, which stands still.
        unsafe { std::env::set_var("SYSFS_PATH", &sysfs) };
        hooks::install(device.open());
        // SAFETY: the types are those of `abi`.
        let rival = unsafe { make(&verbs, &mlx5, &device) };
        let _ = std::fs::remove_dir_all(&sysfs);
        rival
    }

    /// The last of `blocks`-block sends on the plain QP completes; everything before it is retired.
    fn retire(&mut self, blocks: u32) {
        self.posted += OPERATIONS as u32 * blocks;
        let last = self.posted.wrapping_sub(blocks);
        self.cqe.send(self.known.user_index, 8 << 24 | self.known.number, last);
        self.poll_one();
    }

    fn poll_one(&mut self) {
        // SAFETY: room for one completion.
        let count = unsafe { ((*self.context).poll_cq)(self.cq, 1, self.completions.as_mut_ptr()) };
        assert!(count == 1 && self.completions[0].status == 0, "libmlx5 takes the completion");
    }
}

/// What sysfs shows of the device, in a directory of its own.
fn write_sysfs(device: &SoftDevice) -> std::io::Result<PathBuf> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sysfs-{}", std::process::id()));
    device.sysfs().write_to(&root)?;
    let number = root.join("class/infiniband_verbs/uverbs0/dev");
    std::fs::write(number, format!("{}\n", hooks::STAND_IN_NUMBER))?;
    Ok(root)
}

fn check<T>(pointer: *mut T, verb: &str) -> Result<*mut T, String> {
    let error = std::io::Error::last_os_error();
    if pointer.is_null() { Err(format!("{verb}: {error}")) } else { Ok(pointer) }
}

/// # Safety
/// The libraries are libibverbs and libmlx5.
unsafe fn make(verbs: &Library, mlx5: &Library, device: &SoftDevice) -> Result<Rival, String> {
    type ListDevices = unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void;
    type Open = unsafe extern "C" fn(*mut c_void) -> *mut Context;
    type AllocPd = unsafe extern "C" fn(*mut Context) -> Opaque;
    type RegMr = unsafe extern "C" fn(Opaque, *mut u8, usize, c_int) -> *mut [u32; 12];
    type CreateSrq = unsafe extern "C" fn(Opaque, *mut SrqAttr) -> *mut Srq;
    type CreateAh = unsafe extern "C" fn(Opaque, *mut AhAttr) -> *mut c_void;
    type InitObj = unsafe extern "C" fn(*mut [usize; 12], u64) -> c_int;
    // SAFETY: the types above and in `abi` are those of the headers; every pointer was checked.
    unsafe {
        let list: ListDevices = verbs.function(c"ibv_get_device_list")?;
        let open: Open = verbs.function(c"ibv_open_device")?;
        let alloc_pd: AllocPd = verbs.function(c"ibv_alloc_pd")?;
        let reg_mr: RegMr = verbs.function(c"ibv_reg_mr")?;
        let create_srq: CreateSrq = verbs.function(c"ibv_create_srq")?;
        let create_ah: CreateAh = verbs.function(c"ibv_create_ah")?;
        let init_obj: InitObj = mlx5.function(c"mlx5dv_init_obj")?;

        let mut count = 0;
        let devices = list(&mut count);
        if devices.is_null() || count != 1 {
            return Err(format!("libibverbs finds {count} devices"));
        }
        let context = check(open(*devices), "ibv_open_device")?;
        let pd = check(alloc_pd(context), "ibv_alloc_pd")?;
        let extended = &*context.cast::<VerbsContext>().sub(1);
        let td = check((extended.alloc_td)(context, &0), "ibv_alloc_td")?;
        let domain = ParentDomainAttr { pd, td, rest: [0; 4] };
        let domain = (extended.alloc_parent_domain)(context, &domain);
        let domain = check(domain, "ibv_alloc_parent_domain")?;

        let data = crate::fixture::leak(64 * OPERATIONS).as_ptr();
        let region = check(reg_mr(pd, data, 64 * OPERATIONS, LOCAL_KEY_RIGHTS), "ibv_reg_mr")?;
        let lkey = (*region)[9];
        let make_cq = || {
            let attr =
                CqAttrEx { entries: 1023, wc_flags: 127, mask: 1, flags: 1, ..CqAttrEx::default() };
            let mut attr = attr;
            check((extended.create_cq_ex)(context, &mut attr), "ibv_create_cq_ex")
        };
        let (cq, cq_ex) = (make_cq()?.cast::<Cq>(), make_cq()?);
        let mut attr = SrqAttr { user: null_mut(), max_wr: 511, max_sge: 1, limit: 0 };
        let srq = check(create_srq(domain, &mut attr), "ibv_create_srq")?;

        let make_qp = |kind: u32, cq: *mut Cq, srq: *mut Srq| {
            let receives = if srq.is_null() { 512 } else { 0 };
            let mut attr = QpAttrEx {
                user: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq,
                capacities: [512, receives, 1, receives.min(1), 64],
                kind,
                signal_all: 0,
                // A protection domain; for connected ones also the operations of `ibv_wr_*`: write and send.
                mask: if kind == RC { 1 | 64 } else { 1 },
                pd: domain,
                rest: [0; 7],
                send_operations: 1 | 4,
            };
            let qp = check((extended.create_qp_ex)(context, &mut attr), "ibv_create_qp_ex")?;
            to_rts(verbs, qp, kind)?;
            Ok::<_, String>((qp, halted::known(device, (*qp).number)))
        };
        let (qp, known) = make_qp(RC, cq, null_mut())?;
        let (lazy, lazy_known) = make_qp(RC, cq_ex.cast(), null_mut())?;
        let (ud, ud_known) = make_qp(UD, cq, null_mut())?;
        let (_, srq_qp) = make_qp(RC, cq, srq)?;

        let mut srq_direct = DirectSrq::default();
        let mut object = [0; 12];
        (object[4], object[5]) = (srq as usize, (&raw mut srq_direct) as usize);
        if init_obj(&mut object, 4) != 0 {
            return Err("mlx5dv_init_obj".to_owned());
        }
        let mut attr = AhAttr { dlid: 5, port: INFINIBAND_PORT, ..AhAttr::default() };
        let ah = check(create_ah(pd, &mut attr), "ibv_create_ah")?;

        Ok(Rival {
            context,
            cq,
            cqe: halted::producer(device, known),
            cq_ex,
            cqe_ex: halted::producer(device, lazy_known),
            qp,
            // `ibv_qp_to_qp_ex`: an extended QP is one that begins with a QP.
            qp_ex: qp.cast(),
            known,
            posted: 0,
            lazy,
            lazy_known,
            lazy_posted: 0,
            ud,
            ud_known,
            ud_posted: 0,
            srq,
            srq_qp,
            srq_direct,
            ah,
            lkey,
            data,
            sends: Vec::new(),
            sges: Vec::new(),
            receives: Vec::new(),
            completions: vec![WorkCompletion::default(); 16],
        })
    }
}

/// # Safety
/// `qp` is a QP of libibverbs.
unsafe fn to_rts(verbs: &Library, qp: *mut Qp, kind: u32) -> Result<(), String> {
    type ModifyQp = unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    // SAFETY: the type is the header's.
    let modify: ModifyQp = unsafe { verbs.function(c"ibv_modify_qp")? };
    let path = AhAttr { dlid: 5, port: INFINIBAND_PORT, ..AhAttr::default() };
    let base = || QpAttr {
        mtu: 5,
        qkey: 0x1111_1111,
        receive_psn: 1,
        send_psn: 2,
        peer: 0x777,
        access: 0xf,
        reads: 16,
        peer_reads: 16,
        rnr_timer: 12,
        port: INFINIBAND_PORT,
        timeout: 14,
        retries: 7,
        rnr_retries: 7,
        ..QpAttr::default()
    };
    // INIT, RTR, RTS, with what each demands (ibv_modify_qp(3)).
    let masks = match kind {
        UD => [1 | 16 | 32 | 64, 1, 1 | 65536],
        _ => {
            let rtr = 1 | 128 | 256 | 4096 | 32768 | 131_072 | 1_048_576;
            [1 | 8 | 16 | 32, rtr, 1 | 512 | 1024 | 2048 | 8192 | 65536]
        }
    };
    let mut path = Some(path);
    for (state, mask) in (1..).zip(masks) {
        let mut attr = QpAttr { state, ..base() };
        if state == 2 {
            attr.path = path.take().unwrap_or_default();
        }
        // SAFETY: a QP and its attributes.
        let errno = unsafe { modify(qp, &mut attr, mask) };
        if errno != 0 {
            return Err(format!("ibv_modify_qp to {state}: errno {errno}"));
        }
    }
    Ok(())
}
