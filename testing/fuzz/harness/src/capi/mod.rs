//! Calls the drop-in (`capi/`), with its software device, like a C program: verbs with unusual and
//! hostile arguments that the header permits, and objects destroyed in any order.
//!
//! The target checks that there is no panic, no abort and no access outside the program's memory;
//! that a verb fails with the return value that it has in libibverbs, and an errno; that objects in
//! use are busy, and that all others can be destroyed.
//!
//! Pointers are to live objects of the right kind, or null if optional. The memory of requests is
//! in an arena at a fixed address, where the device may write, or is not mapped. With
//! `UVERBS_CHECK` set, pointers may also be to destroyed objects.

mod make;
mod objects;
mod queries;
mod tags;
mod verbs;
mod work;

use std::ffi::{CStr, c_int};
use std::sync::{Mutex, Once, PoisonError};

use arbitrary::{Result, Unstructured};

use crate::abi::*;
use crate::arena::Arena;
use objects::Object;
use verbs::Verbs;

/// The input chooses the actions of a program.
///
/// # Panics
/// If a verb returns a wrong result.
pub fn run(data: &[u8]) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    ask_for_software_devices();
    let mut u = Unstructured::new(data);
    let contexts = if u.ratio(1, 8).unwrap_or(false) { 2 } else { 1 };
    let mut program = Program::open(contexts);
    for _ in 0..80 {
        if u.is_empty() || program.turn(&mut u).is_err() {
            break;
        }
    }
    program.close();
}

fn ask_for_software_devices() {
    static ONCE: Once = Once::new();
    // SAFETY: this process has no software device yet, so no other thread reads the environment.
    ONCE.call_once(|| unsafe { std::env::set_var("UVERBS_DEVICE", "soft") });
}

/// From now on this process's software devices have InfiniBand ports, and programs use tag
/// matching.
pub fn use_infiniband() {
    // SAFETY: as for the other variable. Call it before all else.
    unsafe { std::env::set_var("UVERBS_SOFT_LINK", "ib") };
}

/// A program with the device open.
struct Program {
    verbs: &'static Verbs,
    contexts: Vec<*mut ibv_context>,
    objects: Vec<Object>,
    /// Addresses of destroyed objects, for the debug mode (`UVERBS_CHECK`).
    gone: Vec<Object>,
    checked: bool,
    /// Whether ports are InfiniBand ones.
    is_infiniband: bool,
}

/// Checks the result of a verb that returns 0 or an errno. True if it succeeded.
fn code(answer: c_int) -> bool {
    assert!((0..=133).contains(&answer), "{answer} is neither 0 nor an errno");
    answer == 0
}

/// Checks the result of a verb that returns 0, or −1 and sets `errno`. True if it succeeded.
fn minus(answer: c_int) -> bool {
    assert!(answer == 0 || answer == -1 && verbs::errno() > 0, "{answer}");
    answer == 0
}

impl Program {
    fn open(contexts: usize) -> Self {
        let verbs = Verbs::get();
        Arena::get().clear();
        // SAFETY: opens the first of a list of devices, and uses descriptors of open contexts.
        let contexts = (0..contexts).map(|_| unsafe {
            let mut count = 0;
            let list = (verbs.ibv_get_device_list)(&raw mut count);
            assert!(count == 1 && !CStr::from_ptr((verbs.ibv_get_device_name)(*list)).is_empty());
            let context = (verbs.ibv_open_device)(*list);
            assert!(!context.is_null() && (*context).device == *list);
            (verbs.ibv_free_device_list)(list);
            libc::fcntl((*context).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
            context
        });
        let checked = std::env::var_os("UVERBS_CHECK").is_some();
        let contexts = contexts.collect();
        let is_infiniband = std::env::var_os("UVERBS_SOFT_LINK").is_some_and(|link| link == "ib");
        let (objects, gone) = (Vec::new(), Vec::new());
        Self { verbs, contexts, objects, gone, checked, is_infiniband }
    }

    fn turn(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=15)? {
            0..=4 => self.make(u),
            5..=6 => self.make_queue(u),
            7 => self.ask(u),
            8 => self.connect(u),
            9 => self.change(u),
            10..=11 => self.post(u),
            12 => self.build(u),
            13 => self.poll(u),
            14 => self.events(u),
            _ => self.destroy_one(u),
        }
    }

    fn context(&self, u: &mut Unstructured<'_>) -> Result<*mut ibv_context> {
        u.choose(&self.contexts).copied()
    }

    /// Destroys the objects that are left, users first.
    fn close(mut self) {
        self.acknowledge();
        while !self.objects.is_empty() {
            let before = self.objects.len();
            for index in (0..before).rev() {
                self.destroy(index);
            }
            assert!(self.objects.len() < before, "left: {:?}", self.objects);
        }
        for context in &self.contexts {
            // SAFETY: opened by this program, and without objects now.
            assert_eq!(unsafe { (self.verbs.ibv_close_device)(*context) }, 0);
        }
    }
}

/// Numbers close to limits.
const NUMBERS: [u32; 24] = [
    0,
    1,
    2,
    3,
    4,
    8,
    15,
    16,
    31,
    64,
    100,
    255,
    256,
    4096,
    0x7fff,
    0x8000,
    0x8001,
    0xffff,
    0x1_0000,
    0x40_0001,
    0x100_0000,
    0x7fff_ffff,
    0x8000_0000,
    u32::MAX,
];

/// A number, mostly a small one.
fn small(u: &mut Unstructured<'_>) -> Result<u32> {
    if u.ratio(3, 4)? { u.int_in_range(0..=16) } else { number(u) }
}

/// Any number, often an unusual one.
fn number(u: &mut Unstructured<'_>) -> Result<u32> {
    if u.ratio(7, 8)? { Ok(*u.choose(&NUMBERS)?) } else { u.arbitrary() }
}

/// Flags: mostly none, else some of `known`, or any.
fn flags(u: &mut Unstructured<'_>, known: u32) -> Result<u32> {
    Ok(match u.int_in_range(0..=7)? {
        0..=2 => 0,
        3..=6 => u.arbitrary::<u32>()? & known,
        _ => u.arbitrary()?,
    })
}
