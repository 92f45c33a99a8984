//! Errors of requests that are found before any method runs (core/uverbs_ioctl.c).

use nix::errno::Errno;

use super::bench::{Client, alone, builder};

/// A request as 16-bit words and 64-bit data, which may be invalid.
#[derive(Clone)]
struct Raw {
    bytes: Vec<u8>,
}

impl Raw {
    fn new(object: u16, method: u16) -> Self {
        let mut bytes = vec![0; 24];
        bytes[2..4].copy_from_slice(&object.to_ne_bytes());
        bytes[4..6].copy_from_slice(&method.to_ne_bytes());
        bytes[16..20].copy_from_slice(&1u32.to_ne_bytes());
        Self { bytes }.sized()
    }

    fn attribute(mut self, id: u16, length: u16, flags: u16, reserved: u16, data: u64) -> Self {
        for word in [id, length, flags, reserved] {
            self.bytes.extend(word.to_ne_bytes());
        }
        self.bytes.extend(data.to_ne_bytes());
        self.sized()
    }

    fn sized(mut self) -> Self {
        let length = self.bytes.len() as u16;
        self.bytes[..2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[6..8].copy_from_slice(&((length - 24) / 16).to_ne_bytes());
        self
    }

    fn with(mut self, at: usize, byte: u8) -> Self {
        self.bytes[at] = byte;
        self
    }

    fn flags_of(&self, attribute: usize) -> u16 {
        let at = 24 + attribute * 16 + 4;
        u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn run(&mut self, client: &Client) -> Result<(), Errno> {
        // SAFETY: outputs in these requests are variables of the tests, or wrong addresses.
        unsafe { client.file.ioctl(self.bytes.as_mut_ptr()) }
    }
}

const QUERY_PORT: (u16, u16) = (0, 2);
const MANDATORY: u16 = 1;

/// QUERY_PORT of port 1 into `out`.
fn query_port(out: &mut [u8; 48]) -> Raw {
    let (object, method) = QUERY_PORT;
    Raw::new(object, method).attribute(0, 8, MANDATORY, 0, 1).attribute(
        1,
        48,
        MANDATORY,
        0,
        out.as_mut_ptr() as u64,
    )
}

#[test]
fn the_header_is_checked_first() {
    let (_device, client) = alone();
    let mut out = [0; 48];
    let good = query_port(&mut out);
    assert_eq!(good.clone().run(&client), Ok(()));
    // SAFETY: an address that is not mapped, which must be an error.
    assert_eq!(unsafe { client.file.ioctl(8 as *mut u8) }, Err(Errno::EFAULT));
    assert_eq!(good.clone().with(0, 24).run(&client), Err(Errno::EINVAL), "length too small");
    assert_eq!(good.clone().with(6, 3).run(&client), Err(Errno::EINVAL), "attribute count");
    assert_eq!(good.clone().with(8, 1).run(&client), Err(Errno::EPROTONOSUPPORT), "reserved1");
    assert_eq!(good.clone().with(20, 1).run(&client), Err(Errno::EPROTONOSUPPORT), "reserved2");
    assert_eq!(good.clone().with(16, 2).run(&client), Err(Errno::EINVAL), "another driver");
    assert_eq!(
        good.clone().with(2, 99).run(&client),
        Err(Errno::EPROTONOSUPPORT),
        "no such object"
    );
    assert_eq!(
        good.clone().with(4, 99).run(&client),
        Err(Errno::EPROTONOSUPPORT),
        "no such method"
    );
    let mut long = good;
    for _ in 0..300 {
        long = long.attribute(200, 0, 0, 0, 0);
    }
    assert_eq!(long.run(&client), Err(Errno::EINVAL), "longer than a page");
}

#[test]
fn attributes_are_checked_one_by_one() {
    let (_device, client) = alone();
    let mut out = [0; 48];
    let good = query_port(&mut out);
    let (object, method) = QUERY_PORT;
    let alone = Raw::new(object, method).attribute(0, 8, MANDATORY, 0, 1);
    assert_eq!(alone.clone().run(&client), Err(Errno::EINVAL), "one is missing");
    let unknown = good.clone().attribute(77, 8, MANDATORY, 0, 0);
    assert_eq!(unknown.clone().run(&client), Err(Errno::EPROTONOSUPPORT), "unknown and mandatory");
    assert_eq!(good.clone().attribute(77, 8, 0, 0, 0).run(&client), Ok(()), "unknown and optional");
    assert_eq!(good.clone().attribute(0, 8, 1, 0, 1).run(&client), Err(Errno::EINVAL), "twice");
    let short = Raw::new(object, method).attribute(0, 4, 1, 0, 1);
    assert_eq!(short.clone().run(&client), Err(Errno::EINVAL), "a constant has 8 bytes");
    let reserved = Raw::new(object, method).attribute(0, 8, 1, 1, 1);
    assert_eq!(reserved.clone().run(&client), Err(Errno::EINVAL), "reserved of an input");
    let nowhere = alone.clone().attribute(1, 48, 1, 0, 16);
    assert_eq!(nowhere.clone().run(&client), Err(Errno::EFAULT), "output to nowhere");
    let small = alone.attribute(1, 40, 1, 0, 16);
    assert_eq!(small.clone().run(&client), Err(Errno::EINVAL), "a buffer shorter than the struct");
}

#[test]
fn outputs_are_flagged_and_their_rest_is_cleared() {
    let (_device, client) = alone();
    let mut out = [0xaa_u8; 64];
    let (object, method) = QUERY_PORT;
    let mut request = Raw::new(object, method).attribute(0, 8, MANDATORY, 0, 1).attribute(
        1,
        64,
        MANDATORY,
        0,
        out.as_mut_ptr() as u64,
    );
    assert_eq!(request.run(&client), Ok(()));
    assert_eq!(request.flags_of(1), 3, "mandatory, valid output");
    assert_eq!(request.flags_of(0), 1);
    assert_eq!(out[48..], [0; 16], "after the struct");
    assert_eq!(out[26], 4, "port state active");
}

#[test]
fn handles_are_looked_up_with_their_kind() {
    let (_device, client) = alone();
    let pd = client.alloc_pd();
    let destroy_mr = |handle: u64| Raw::new(7, 1).attribute(0, 0, 1, 0, handle).run(&client);
    assert_eq!(destroy_mr(99), Err(Errno::ENOENT));
    assert_eq!(destroy_mr(pd.into()), Err(Errno::EINVAL), "a PD is not an MR");
    assert_eq!(destroy_mr(u64::MAX), Err(Errno::EINVAL), "negative");
    assert_eq!(destroy_mr(1 << 40), Err(Errno::ENOENT));
    let with_length = Raw::new(1, 0).attribute(0, 4, 1, 0, pd.into()).run(&client);
    assert_eq!(with_length, Err(Errno::EINVAL), "a handle has no length");
    assert_eq!(Raw::new(1, 0).attribute(0, 0, 1, 0, pd.into()).run(&client), Ok(()));
    assert_eq!(Raw::new(1, 0).attribute(0, 0, 1, 0, pd.into()).run(&client), Err(Errno::ENOENT));
}

#[test]
fn growing_structs_may_end_with_zeros() {
    let (_device, client) = alone();
    // QP.CREATE with CAP of 24 bytes: refused with EOPNOTSUPP if the tail is not zero, else for its
    // missing rest.
    let mut cap = [0u8; 24];
    let request =
        |cap: &[u8; 24]| Raw::new(4, 0).attribute(8, 24, 1, 0, cap.as_ptr() as u64).run(&client);
    assert_eq!(request(&cap), Err(Errno::EINVAL));
    cap[23] = 1;
    assert_eq!(request(&cap), Err(Errno::EOPNOTSUPP));
}

#[test]
fn write_commands_know_their_sizes() {
    let (_device, client) = alone();
    let invoke = |command: u64| Raw::new(0, 0).attribute(2, 8, 1, 0, command);
    assert_eq!(invoke(0).run(&client), Err(Errno::ENOSPC), "the probe of libibverbs");
    assert_eq!(invoke(3).run(&client), Err(Errno::ENOSPC), "ALLOC_PD without a request");
    assert_eq!(invoke(21).run(&client), Err(Errno::EOPNOTSUPP), "POLL_CQ");
    assert_eq!(invoke(0xfe).run(&client), Err(Errno::EOPNOTSUPP), "beyond the last");
    assert_eq!(invoke(1 << 31 | 0xfe).run(&client), Err(Errno::EOPNOTSUPP));
    assert_eq!(invoke(1 << 9).run(&client), Err(Errno::EINVAL), "unknown bits");
    assert_eq!(invoke(1 << 40).run(&client), Err(Errno::EINVAL), "more than 32 bits");
    let longer = [0u8, 0, 0, 0, 0, 0, 0, 0, 1];
    let request = invoke(4).attribute(0, 9, 1, 0, longer.as_ptr() as u64);
    assert_eq!(
        request.clone().run(&client),
        Err(Errno::EOPNOTSUPP),
        "DEALLOC_PD with more than zeros behind"
    );
}

#[test]
fn without_a_context_most_methods_are_refused() {
    let device = builder().build().unwrap();
    let client = Client::bare(&device);
    let mut out = [0; 48];
    assert_eq!(query_port(&mut out).run(&client), Err(Errno::EINVAL));
    assert_eq!(Raw::new(16, 0).attribute(0, 0, 1, 0, 0).run(&client), Err(Errno::EINVAL));
    assert_eq!(client.map(0, 4096, libc::PROT_WRITE).unwrap_err(), Errno::EINVAL);
}
