//! The hooks that take a path and have a counterpart in the C library for every other path.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use nix::errno::Errno;

use crate::paths::{self, Place, Target};
use crate::sys::{self, next};
use crate::{files, hooks};

/// The C library's function with another path.
type Next<'a, R> = &'a dyn Fn(&CStr) -> R;

/// Hooks by name: whether links are followed, the C function's type, what it returns when it fails,
/// and what answers for a path of the devices' (by the path without links, what is there, and the
/// function).
macro_rules! path_hooks {
    ($($name:ident $([$directory:ident])? $follow:literal
        ($($argument:ident: $kind:ty),*) -> $result:ty, $failure:expr, $answer:expr;)*) => {$(
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
            // SAFETY: the C function's contract, for a path that is as valid as the program's.
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
                Target::Own(path, place) => {
                    $answer(&path, place, &|path: &CStr| call(path.as_ptr()) $(, $argument)*)
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

path_hooks! {
    access true (mode: c_int) -> c_int, -1, access_own;
    euidaccess true (mode: c_int) -> c_int, -1, access_own;
    eaccess true (mode: c_int) -> c_int, -1, access_own;
    faccessat[directory] true (mode: c_int, flags: c_int) -> c_int, -1, access_at;
    readlink false (into: *mut c_char, length: usize) -> isize, -1, read_link;
    readlinkat[directory] false (into: *mut c_char, length: usize) -> isize, -1, read_link;
    __readlink_chk false (into: *mut c_char, length: usize, room: usize) -> isize, -1, read_link_checked;
    __readlinkat_chk[directory] false
        (into: *mut c_char, length: usize, room: usize) -> isize, -1, read_link_checked;
    fopen true (mode: *const c_char) -> *mut libc::FILE, std::ptr::null_mut(), open_stream;
    fopen64 true (mode: *const c_char) -> *mut libc::FILE, std::ptr::null_mut(), open_stream;
    opendir true () -> *mut libc::DIR, std::ptr::null_mut(), in_directory;
    chdir true () -> c_int, -1, in_directory;
    scandir true
        (list: *mut *mut *mut libc::dirent, filter: *const c_void, compare: *const c_void) -> c_int, -1, scan;
    scandir64 true
        (list: *mut *mut *mut libc::dirent64, filter: *const c_void, compare: *const c_void) -> c_int, -1, scan;
    realpath true (into: *mut c_char) -> *mut c_char, std::ptr::null_mut(), real_path;
    __realpath_chk true
        (into: *mut c_char, room: usize) -> *mut c_char, std::ptr::null_mut(), real_path_checked;
    canonicalize_file_name true () -> *mut c_char, std::ptr::null_mut(), canonical_name;
    getxattr true
        (name: *const c_char, into: *mut c_void, length: usize) -> isize, -1, without_attributes;
    lgetxattr false
        (name: *const c_char, into: *mut c_void, length: usize) -> isize, -1, without_attributes;
    listxattr true (into: *mut c_char, length: usize) -> isize, -1, without_list;
    llistxattr false (into: *mut c_char, length: usize) -> isize, -1, without_list;
}

/// As the kernel for root as well: an attribute without a store function cannot be written.
fn access_own(_: &str, place: Place, _: Next<'_, c_int>, mode: c_int) -> Result<c_int, Errno> {
    let refused = match place {
        Place::Directory => libc::W_OK,
        Place::Node(_) => libc::X_OK,
        Place::File(_) | Place::Link(_) => libc::W_OK | libc::X_OK,
    };
    if mode & refused == 0 { Ok(0) } else { Err(Errno::EACCES) }
}

fn access_at(
    path: &str,
    place: Place,
    next: Next<'_, c_int>,
    mode: c_int,
    _flags: c_int,
) -> Result<c_int, Errno> {
    access_own(path, place, next, mode)
}

fn read_link(
    _: &str,
    place: Place,
    _: Next<'_, isize>,
    into: *mut c_char,
    length: usize,
) -> Result<isize, Errno> {
    let Place::Link(text) = place else { return Err(Errno::EINVAL) };
    let length = length.min(text.len());
    // SAFETY: the program's buffer has so many bytes.
    unsafe { into.copy_from_nonoverlapping(text.as_ptr().cast(), length) };
    Ok(length as isize)
}

fn read_link_checked(
    path: &str,
    place: Place,
    next: Next<'_, isize>,
    into: *mut c_char,
    length: usize,
    room: usize,
) -> Result<isize, Errno> {
    read_link(path, place, next, into, length.min(room))
}

fn open_stream(
    path: &str,
    place: Place,
    _: Next<'_, *mut libc::FILE>,
    mode: *const c_char,
) -> Result<*mut libc::FILE, Errno> {
    // SAFETY: a C string, by the C function's contract.
    let flags = files::read_flags(unsafe { CStr::from_ptr(mode) });
    let fd = match place {
        Place::File(contents) => files::open(path, &contents, flags.ok_or(Errno::EACCES)?)?,
        Place::Node(kind) => hooks::open_node(kind, flags.unwrap_or(0))?,
        Place::Directory => return Err(Errno::EISDIR),
        Place::Link(_) => return Err(Errno::ELOOP),
    };
    // SAFETY: a descriptor of no other owner, and the program's C string.
    Ok(unsafe { libc::fdopen(fd, mode) })
}

fn in_directory<R>(path: &str, place: Place, next: Next<'_, R>) -> Result<R, Errno> {
    match place {
        Place::Directory => Ok(next(&files::listed(path)?)),
        _ => Err(Errno::ENOTDIR),
    }
}

fn scan<T>(
    path: &str,
    place: Place,
    next: Next<'_, c_int>,
    _list: *mut *mut *mut T,
    _filter: *const c_void,
    _compare: *const c_void,
) -> Result<c_int, Errno> {
    in_directory(path, place, next)
}

fn real_path(
    path: &str,
    _: Place,
    _: Next<'_, *mut c_char>,
    into: *mut c_char,
) -> Result<*mut c_char, Errno> {
    let path = CString::new(format!("/{path}")).map_err(|_| Errno::EINVAL)?;
    if into.is_null() {
        // SAFETY: a C string; the program frees the copy, as it would the C library's.
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

fn real_path_checked(
    path: &str,
    place: Place,
    next: Next<'_, *mut c_char>,
    into: *mut c_char,
    _room: usize,
) -> Result<*mut c_char, Errno> {
    real_path(path, place, next, into)
}

fn canonical_name(
    path: &str,
    place: Place,
    next: Next<'_, *mut c_char>,
) -> Result<*mut c_char, Errno> {
    real_path(path, place, next, std::ptr::null_mut())
}

fn without_attributes(
    _: &str,
    _: Place,
    _: Next<'_, isize>,
    _name: *const c_char,
    _into: *mut c_void,
    _length: usize,
) -> Result<isize, Errno> {
    Err(Errno::EOPNOTSUPP)
}

fn without_list(
    _: &str,
    _: Place,
    _: Next<'_, isize>,
    _into: *mut c_char,
    _length: usize,
) -> Result<isize, Errno> {
    Err(Errno::EOPNOTSUPP)
}
