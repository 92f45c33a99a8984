//! The hooks that take a path, and call the C library's function for paths that are not the
//! devices'.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use nix::errno::Errno;

use crate::paths::{self, Place, Target};
use crate::sys::{self, next};
use crate::{files, hooks};

/// Calls the C library's function with another path.
type Next<'a, R> = &'a dyn Fn(&CStr) -> R;

/// A row per hook: name, whether it follows links, the C function's type, its result on failure,
/// and a closure for paths of the devices. The closure takes the path without links, the place at
/// this path and the C library's function, and can use the arguments of the hook.
macro_rules! path_hooks {
    ($($name:ident $([$directory:ident])? $follow:literal
        ($($argument:ident: $kind:ty),*) -> $result:ty, $failure:expr,
        |$path:pat_param, $place:pat_param, $next:pat_param| $answer:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($directory: c_int,)? path: *const c_char $(, $argument: $kind)*
        ) -> $result {
            type Function = unsafe extern "C" fn(
                $(path_hooks!(@descriptor $directory),)? *const c_char $(, $kind)*
            ) -> $result;
            let Some(next) = next!($name as Function) else {
                sys::fail(libc::ENOSYS);
                return $failure;
            };
            // SAFETY: the C function's contract, with a path that is as valid as the program's.
            let call = |path: *const c_char| unsafe {
                next($($directory,)? path $(, $argument)*)
            };
            let directory = path_hooks!(@value $($directory)?);
            // SAFETY: the C function's contract makes `path` null or a C string.
            let Some(target) = (unsafe { paths::find(directory, path, $follow) }) else {
                return call(path);
            };
            let answer = target.and_then(|target| match target {
                Target::Elsewhere(path) => Ok(call(path.as_ptr())),
                Target::Own($path, $place) => {
                    let $next: Next<'_, $result> = &|path: &CStr| call(path.as_ptr());
                    $answer
                }
            });
            answer.unwrap_or_else(|errno: Errno| {
                sys::fail(errno as c_int);
                $failure
            })
        }
    )*};
    (@descriptor $directory:ident) => { c_int };
    (@value) => { libc::AT_FDCWD };
    (@value $directory:ident) => { $directory };
}

const NO_NAME: *mut c_char = std::ptr::null_mut();
const NO_STREAM: *mut libc::FILE = std::ptr::null_mut();
const NO_LIST: *mut libc::DIR = std::ptr::null_mut();

path_hooks! {
    access true (mode: c_int) -> c_int, -1, |_, place, _| may_access(&place, mode);
    euidaccess true (mode: c_int) -> c_int, -1, |_, place, _| may_access(&place, mode);
    eaccess true (mode: c_int) -> c_int, -1, |_, place, _| may_access(&place, mode);
    faccessat[directory] true (mode: c_int, flags: c_int) -> c_int, -1,
        |_, place, _| may_access(&place, mode);
    readlink false (into: *mut c_char, length: usize) -> isize, -1,
        |_, place, _| read_link(&place, into, length);
    readlinkat[directory] false (into: *mut c_char, length: usize) -> isize, -1,
        |_, place, _| read_link(&place, into, length);
    __readlink_chk false (into: *mut c_char, length: usize, size: usize) -> isize, -1,
        |_, place, _| read_link(&place, into, length.min(size));
    __readlinkat_chk[directory] false
        (into: *mut c_char, length: usize, size: usize) -> isize, -1,
        |_, place, _| read_link(&place, into, length.min(size));
    fopen true (mode: *const c_char) -> *mut libc::FILE, NO_STREAM,
        |path, place, _| open_stream(&path, &place, mode);
    fopen64 true (mode: *const c_char) -> *mut libc::FILE, NO_STREAM,
        |path, place, _| open_stream(&path, &place, mode);
    opendir true () -> *mut libc::DIR, NO_LIST, |path, place, next| in_directory(&path, &place, next);
    chdir true () -> c_int, -1, |path, place, next| in_directory(&path, &place, next);
    scandir true
        (list: *mut *mut *mut libc::dirent, filter: *const c_void, compare: *const c_void) -> c_int, -1,
        |path, place, next| in_directory(&path, &place, next);
    scandir64 true
        (list: *mut *mut *mut libc::dirent64, filter: *const c_void, compare: *const c_void) -> c_int, -1,
        |path, place, next| in_directory(&path, &place, next);
    realpath true (into: *mut c_char) -> *mut c_char, NO_NAME, |path, _, _| real_path(&path, into);
    __realpath_chk true (into: *mut c_char, size: usize) -> *mut c_char, NO_NAME,
        |path, _, _| real_path(&path, into);
    canonicalize_file_name true () -> *mut c_char, NO_NAME, |path, _, _| real_path(&path, NO_NAME);
    getxattr true
        (name: *const c_char, into: *mut c_void, length: usize) -> isize, -1, |_, _, _| no_attributes();
    lgetxattr false
        (name: *const c_char, into: *mut c_void, length: usize) -> isize, -1, |_, _, _| no_attributes();
    listxattr true (into: *mut c_char, length: usize) -> isize, -1, |_, _, _| no_attributes();
    llistxattr false (into: *mut c_char, length: usize) -> isize, -1, |_, _, _| no_attributes();
}

/// As in the kernel for root: an attribute without a store function cannot be written.
fn may_access(place: &Place, mode: c_int) -> Result<c_int, Errno> {
    let refused = match place {
        Place::Directory => libc::W_OK,
        Place::Node(_) => libc::X_OK,
        Place::File(_) | Place::Link(_) => libc::W_OK | libc::X_OK,
    };
    if mode & refused == 0 { Ok(0) } else { Err(Errno::EACCES) }
}

fn read_link(place: &Place, into: *mut c_char, length: usize) -> Result<isize, Errno> {
    let Place::Link(text) = place else { return Err(Errno::EINVAL) };
    let length = length.min(text.len());
    // SAFETY: the program's buffer has `length` bytes.
    unsafe { into.copy_from_nonoverlapping(text.as_ptr().cast(), length) };
    Ok(length as isize)
}

fn open_stream(path: &str, place: &Place, mode: *const c_char) -> Result<*mut libc::FILE, Errno> {
    // SAFETY: a C string, by the C function's contract.
    let flags = files::read_flags(unsafe { CStr::from_ptr(mode) });
    let fd = match place {
        Place::File(contents) => files::open(path, contents, flags.ok_or(Errno::EACCES)?)?,
        Place::Node(kind) => hooks::open_node(*kind, flags.unwrap_or(0))?,
        Place::Directory => return Err(Errno::EISDIR),
        Place::Link(_) => return Err(Errno::ELOOP),
    };
    // SAFETY: a descriptor without another owner, and the program's C string.
    Ok(unsafe { libc::fdopen(fd, mode) })
}

fn in_directory<R>(path: &str, place: &Place, next: Next<'_, R>) -> Result<R, Errno> {
    match place {
        Place::Directory => Ok(next(&files::listed(path)?)),
        _ => Err(Errno::ENOTDIR),
    }
}

fn real_path(path: &str, into: *mut c_char) -> Result<*mut c_char, Errno> {
    let path = CString::new(format!("/{path}")).map_err(|_| Errno::EINVAL)?;
    if into.is_null() {
        // SAFETY: a C string; the program frees the copy, as with the C library.
        return Ok(unsafe { libc::strdup(path.as_ptr()) });
    }
    let bytes = path.as_bytes_with_nul();
    if bytes.len() > libc::PATH_MAX as usize {
        return Err(Errno::ENAMETOOLONG);
    }
    // SAFETY: the program's buffer has PATH_MAX bytes, by the C function's contract.
    unsafe { into.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    Ok(into)
}

fn no_attributes() -> Result<isize, Errno> {
    Err(Errno::EOPNOTSUPP)
}
