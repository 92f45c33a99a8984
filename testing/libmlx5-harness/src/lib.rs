//! Runs libmlx5 in this process, on plain memory, for comparisons in tests, fuzzing and benchmarks.
//!
//! The harness loads libibverbs and libmlx5 at run time and changes their import tables, so that
//! their system calls on the character device go to the software device's `chardev` front end.
//! Nothing else in them is changed. Doorbell pages are plain memory, so the device gets no
//! doorbells and executes nothing: queues fill up, and the caller writes the completions
//! ([`QueuePair::complete`]). A process opens only one device.
//!
//! No published crate depends on this one.
#![cfg(target_os = "linux")]

pub mod abi;
mod hooks;
mod objects;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use uverbs_soft::chardev::SoftDevice;

use crate::abi::{
    Ah, AhAttr, Context, Cq, DirectObjects, DirectQpAttr, DirectQpEx, Mr, Opaque, Pd, Qp, QpAttr,
    QpAttrEx, QpEx, Srq, Wq,
};

pub use objects::{
    MAX_TSO_HEADER, QueuePair, QueuePairSpec, Service, SharedQueue, TagCompletion, TagQueue,
    WorkQueue,
};

macro_rules! functions {
    ($($(#[$meta:meta])* $name:ident: $library:ident $symbol:literal ($($argument:ty),*) -> $result:ty,)*) => {
        /// The libraries' functions. The inline functions of `verbs.h` call pointers in [`abi`]'s
        /// structures.
        #[derive(Clone, Copy)]
        pub struct Functions {
            $($(#[$meta])* pub $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            fn find(verbs: Opaque, mlx5: Opaque) -> Result<Self, String> {
                let libraries = Libraries { verbs, mlx5 };
                Ok(Self { $(
                    // SAFETY: the symbol is that function, by the libraries' binary interface.
                    $name: unsafe { std::mem::transmute::<Opaque, unsafe extern "C" fn($($argument),*) -> $result>(
                        symbol(libraries.$library, $symbol)?) },
                )* })
            }
        }
    };
}

struct Libraries {
    verbs: Opaque,
    mlx5: Opaque,
}

type DeviceList = *mut Opaque;

functions! {
    /// `ibv_get_device_list`.
    get_device_list: verbs c"ibv_get_device_list" (*mut c_int) -> DeviceList,
    /// `ibv_free_device_list`.
    free_device_list: verbs c"ibv_free_device_list" (DeviceList) -> (),
    /// `ibv_open_device`.
    open_device: verbs c"ibv_open_device" (Opaque) -> *mut Context,
    /// `ibv_alloc_pd`.
    alloc_pd: verbs c"ibv_alloc_pd" (*mut Context) -> *mut Pd,
    /// `ibv_reg_mr`, the function of that name, not the macro.
    reg_mr: verbs c"ibv_reg_mr" (*mut Pd, *mut c_void, usize, c_int) -> *mut Mr,
    /// `ibv_create_cq`.
    create_cq: verbs c"ibv_create_cq" (*mut Context, c_int, Opaque, Opaque, c_int) -> *mut Cq,
    /// `ibv_destroy_cq`.
    destroy_cq: verbs c"ibv_destroy_cq" (*mut Cq) -> c_int,
    /// `ibv_create_srq`.
    create_srq: verbs c"ibv_create_srq" (*mut Pd, *mut abi::SrqAttr) -> *mut Srq,
    /// `ibv_destroy_srq`.
    destroy_srq: verbs c"ibv_destroy_srq" (*mut Srq) -> c_int,
    /// `ibv_create_ah`.
    create_ah: verbs c"ibv_create_ah" (*mut Pd, *const AhAttr) -> *mut Ah,
    /// `ibv_modify_qp`.
    modify_qp: verbs c"ibv_modify_qp" (*mut Qp, *const QpAttr, c_int) -> c_int,
    /// `ibv_qp_to_qp_ex`.
    qp_to_qp_ex: verbs c"ibv_qp_to_qp_ex" (*mut Qp) -> *mut QpEx,
    /// `mlx5dv_create_qp`.
    create_direct_qp: mlx5 c"mlx5dv_create_qp" (*mut Context, *mut QpAttrEx, *mut DirectQpAttr) -> *mut Qp,
    /// `mlx5dv_qp_ex_from_ibv_qp_ex`.
    direct_qp_ex: mlx5 c"mlx5dv_qp_ex_from_ibv_qp_ex" (*mut QpEx) -> *mut DirectQpEx,
    /// `mlx5dv_create_wq`.
    create_direct_wq: mlx5 c"mlx5dv_create_wq" (*mut Context, *mut abi::WqAttr, *mut abi::DirectWqAttr) -> *mut Wq,
    /// `mlx5dv_init_obj`.
    init_obj: mlx5 c"mlx5dv_init_obj" (*mut DirectObjects, u64) -> c_int,
}

/// libibverbs, with an open device of libmlx5.
pub struct Libmlx5 {
    /// The libraries' functions.
    pub functions: Functions,
    /// The open device.
    pub context: *mut Context,
    /// A protection domain.
    pub pd: *mut Pd,
    /// The software device that libmlx5 uses.
    pub device: SoftDevice,
}

// SAFETY: libibverbs' objects may be used by any thread.
unsafe impl Send for Libmlx5 {}
// SAFETY: as above; several threads may use them at the same time, too.
unsafe impl Sync for Libmlx5 {}

impl Libmlx5 {
    /// The libraries, which the first call loads. That call sets the environment variable
    /// `SYSFS_PATH`, by which libibverbs finds the device: no other thread may use the environment
    /// until it returns.
    ///
    /// # Errors
    /// The name of the missing library, or of the function that a library lacks.
    pub fn load() -> Result<&'static Self, String> {
        Self::load_on(|| SoftDevice::builder("mlx5_0").without_wire().build())
    }

    /// As [`Libmlx5::load`]; the first call opens the device that `make` returns.
    ///
    /// # Errors
    /// As for [`Libmlx5::load`], or the error of `make`.
    pub fn load_on(
        make: impl FnOnce() -> std::io::Result<SoftDevice>,
    ) -> Result<&'static Self, String> {
        static ONE: OnceLock<Result<Libmlx5, String>> = OnceLock::new();
        ONE.get_or_init(|| Self::bring_up(make)).as_ref().map_err(Clone::clone)
    }

    fn bring_up(make: impl FnOnce() -> std::io::Result<SoftDevice>) -> Result<Self, String> {
        let (verbs, mlx5) = (library(c"libibverbs.so.1")?, library(c"libmlx5.so.1")?);
        let functions = Functions::find(verbs, mlx5)?;
        let device = make().map_err(|error| format!("the software device: {error}"))?;
        let sysfs = Sysfs::lay_out(&device).map_err(|error| format!("a directory: {error}"))?;
        hooks::install(device.open());
        // SAFETY: libibverbs' functions as `verbs.h` declares them; the list ends with a null
        // pointer, and an open device outlives the list.
        let (context, pd) = unsafe {
            let list = (functions.get_device_list)(std::ptr::null_mut());
            if list.is_null() || (*list).is_null() {
                return Err("libibverbs finds no device: no provider for mlx5".into());
            }
            let context = (functions.open_device)(*list);
            (functions.free_device_list)(list);
            let context = made(context, "libmlx5 does not open the device")?;
            (context, (functions.alloc_pd)(context))
        };
        drop(sysfs);
        let pd = made(pd, "there is no protection domain")?;
        Ok(Self { functions, context, pd, device })
    }
}

/// The device's sysfs entries, in a directory that exists while libibverbs reads it.
struct Sysfs(std::path::PathBuf);

impl Sysfs {
    fn lay_out(device: &SoftDevice) -> std::io::Result<Self> {
        let root = std::env::temp_dir().join(format!("uverbs-libmlx5-{}", std::process::id()));
        device.sysfs().write_to(&root)?;
        let number = root.join("class/infiniband_verbs/uverbs0/dev");
        std::fs::write(number, hooks::STAND_IN_NUMBER)?;
        // SAFETY: the caller of `Libmlx5::load` makes sure that no other thread uses the
        // environment.
        unsafe { std::env::set_var("SYSFS_PATH", &root) };
        Ok(Self(root))
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        // A remaining directory does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn library(name: &CStr) -> Result<Opaque, String> {
    // SAFETY: loading a library runs its constructors.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() { Err(linker_error()) } else { Ok(handle) }
}

fn symbol(library: Opaque, name: &CStr) -> Result<Opaque, String> {
    // SAFETY: an open library.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(linker_error()) } else { Ok(found) }
}

fn linker_error() -> String {
    // SAFETY: after a failure there is a message, which is valid until this thread's next call.
    let message: *const c_char = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the dynamic linker gives no reason".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// The object that a verb has created.
///
/// # Errors
/// `failure` and the last error, if the verb returned null.
pub fn made<T>(object: *mut T, failure: &str) -> Result<*mut T, String> {
    let error = std::io::Error::last_os_error();
    if object.is_null() { Err(format!("{failure}: {error}")) } else { Ok(object) }
}
