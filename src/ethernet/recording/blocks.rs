//! The blocks of pcapng files (draft-ietf-opsawg-pcapng).

use std::io::Read;

use super::read::{Order, Recorded, Source, check_link};
use super::{
    BYTE_ORDER, ENHANCED_PACKET, INTERFACE, LONGEST, OLD_PACKET, SECTION_HEADER, SIMPLE_PACKET,
};
use crate::error::Result;

/// Bytes of the longest block whose body is read: a frame and its options.
const LONGEST_BLOCK: u32 = LONGEST + 65_536;
/// Most interfaces of a section.
const MAX_INTERFACES: usize = 65_536;
const IF_TSRESOL: u16 = 9;
const IF_TSOFFSET: u16 = 14;

/// The reader's state in the current section.
#[derive(Debug)]
pub(super) struct Sections {
    order: Order,
    interfaces: Vec<Interface>,
    /// The time of the last frame, for simple packet blocks, which have none.
    time: u64,
}

/// The clock of an interface.
#[derive(Debug, Clone, Copy)]
struct Interface {
    resolution: Resolution,
    /// Seconds to add.
    offset: i64,
}

#[derive(Debug, Clone, Copy)]
enum Resolution {
    /// 10^n timestamp units per second.
    Decimal(u8),
    /// 2^n timestamp units per second.
    Binary(u8),
}

impl Resolution {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            0..=19 => Some(Self::Decimal(byte)),
            0x80..=0xbf => Some(Self::Binary(byte & 0x7f)),
            _ => None,
        }
    }

    fn nanoseconds(self, time: u64) -> u64 {
        let time = u128::from(time);
        let nanoseconds = match self {
            Self::Decimal(digits @ 0..=9) => time * 10u128.pow(9 - u32::from(digits)),
            Self::Decimal(digits) => time / 10u128.pow(u32::from(digits) - 9),
            Self::Binary(bits) => (time * 1_000_000_000) >> bits,
        };
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }
}

impl Interface {
    fn time(&self, high: u32, low: u32) -> u64 {
        let time = self.resolution.nanoseconds(u64::from(high) << 32 | u64::from(low));
        let offset = self.offset.saturating_mul(1_000_000_000);
        time.saturating_add_signed(offset)
    }
}

impl Sections {
    /// Reads the first section header, after its type.
    pub(super) fn first(source: &mut Source<impl Read>) -> Result<Self> {
        let mut sections = Self { order: Order::Little, interfaces: Vec::new(), time: 0 };
        sections.section(source)?;
        Ok(sections)
    }

    /// Reads a section header after its type. Its byte-order magic decides how its length is read.
    fn section(&mut self, source: &mut Source<impl Read>) -> Result<()> {
        let [a, b, c, d, magic @ ..] = source.exactly::<8>("a section's header")?;
        self.order = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
            (BYTE_ORDER, _) => Order::Little,
            (_, BYTE_ORDER) => Order::Big,
            _ => return Err(source.refuse("a section without the byte-order magic")),
        };
        self.interfaces.clear();
        let total = self.order.u32([a, b, c, d]);
        let rest = self.body(source, total, 16)?;
        let major = rest.first_chunk().map_or(0, |bytes| self.order.u16(*bytes));
        if major != 1 {
            return Err(source.refuse(format!("pcapng version {major}: only 1 is known")));
        }
        self.end(source, total)
    }

    /// Reads the rest of a block's body. `before` is the number of bytes of the block's header and
    /// trailer.
    fn body(&self, source: &mut Source<impl Read>, total: u32, before: u32) -> Result<Vec<u8>> {
        self.check(source, total, before)?;
        if total > LONGEST_BLOCK {
            let cause = format!("a block of {total} bytes: the file is damaged");
            return Err(source.refuse(cause));
        }
        source.bytes(total - before, "a block")
    }

    fn check(&self, source: &Source<impl Read>, total: u32, before: u32) -> Result<()> {
        if total < before || total % 4 != 0 {
            return Err(source.refuse(format!("a block of {total} bytes: the file is damaged")));
        }
        Ok(())
    }

    fn end(&self, source: &mut Source<impl Read>, total: u32) -> Result<()> {
        let again = self.order.u32(source.exactly("a block's end")?);
        if again != total {
            let cause = format!("a block of {total} bytes says {again} at its end");
            return Err(source.refuse(cause));
        }
        Ok(())
    }

    /// The next frame.
    pub(super) fn next(&mut self, source: &mut Source<impl Read>) -> Result<Option<Recorded>> {
        loop {
            let Some(kind) = source.header("a block's type")? else { return Ok(None) };
            if u32::from_le_bytes(kind) == SECTION_HEADER {
                self.section(source)?;
                continue;
            }
            let kind = self.order.u32(kind);
            let total = self.order.u32(source.exactly("a block's length")?);
            if !matches!(kind, INTERFACE | OLD_PACKET | SIMPLE_PACKET | ENHANCED_PACKET) {
                self.check(source, total, 12)?;
                source.skip(total - 12, "a block")?;
                self.end(source, total)?;
                continue;
            }
            let body = self.body(source, total, 12)?;
            self.end(source, total)?;
            if kind == INTERFACE {
                self.interface(source, &body)?;
            } else {
                return self.packet(source, kind, body).map(Some);
            }
        }
    }

    fn interface(&mut self, source: &Source<impl Read>, body: &[u8]) -> Result<()> {
        let Some((header, options)) = body.split_at_checked(8) else {
            return Err(source.refuse("an interface without its header"));
        };
        check_link(source, self.order.u16([header[0], header[1]]))?;
        if self.interfaces.len() >= MAX_INTERFACES {
            return Err(source.refuse("more than 65536 interfaces: the file is damaged"));
        }
        let mut interface = Interface { resolution: Resolution::Decimal(6), offset: 0 };
        for (code, value) in self.options(options) {
            match (code, value) {
                (IF_TSRESOL, [byte, ..]) => {
                    let cause = || source.refuse(format!("timestamps of resolution {byte:#x}"));
                    interface.resolution = Resolution::of(*byte).ok_or_else(cause)?;
                }
                (IF_TSOFFSET, [high @ .., _, _, _, _]) if high.len() == 4 => {
                    interface.offset = self.number(value);
                }
                _ => {}
            }
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn number(&self, value: &[u8]) -> i64 {
        let [first, second] = self.order.words(value);
        let (low, high) = match self.order {
            Order::Little => (first, second),
            Order::Big => (second, first),
        };
        (u64::from(high) << 32 | u64::from(low)) as i64
    }

    /// Code and value of each option, up to the end or a truncated one.
    fn options<'b>(&self, mut options: &'b [u8]) -> impl Iterator<Item = (u16, &'b [u8])> {
        let order = self.order;
        std::iter::from_fn(move || {
            let (header, rest) = options.split_at_checked(4)?;
            let (code, length) =
                (order.u16([header[0], header[1]]), order.u16([header[2], header[3]]).into());
            let value = rest.get(..length)?;
            options = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            (code != 0).then_some((code, value))
        })
    }

    fn packet(&mut self, source: &Source<impl Read>, kind: u32, body: Vec<u8>) -> Result<Recorded> {
        let words = if kind == SIMPLE_PACKET { 1 } else { 5 };
        let Some(header) = body.get(..4 * words) else {
            return Err(source.refuse("a frame without its header"));
        };
        let [first, high, low, recorded, length] = self.order.words(header);
        let (interface, recorded, length) = match kind {
            SIMPLE_PACKET => (0, first.min(body.len() as u32 - 4), first),
            // The interface has 16 bits; the number of dropped frames follows.
            OLD_PACKET => {
                (self.order.u16([header[0], header[1]]).into(), recorded, length.max(recorded))
            }
            _ => (first, recorded, length.max(recorded)),
        };
        let Some(interface) = self.interfaces.get(interface as usize) else {
            return Err(
                source.refuse(format!("a frame names interface {interface}, which there is not"))
            );
        };
        source.check_length(recorded)?;
        let Some(bytes) = body.get(4 * words..4 * words + recorded as usize) else {
            return Err(source.refuse(format!("a frame of {recorded} bytes in a shorter block")));
        };
        if kind != SIMPLE_PACKET {
            self.time = interface.time(high, low);
        }
        Ok(Recorded { time: self.time, length, bytes: bytes.to_vec() })
    }
}
