//! Netlink messages as bytes: `struct nlmsghdr`, `struct nlattr` (linux/netlink.h).

/// Bytes of a header.
pub(super) const HEADER: usize = 16;
pub(super) const NLM_F_REQUEST: u16 = 1;
pub(super) const NLM_F_MULTI: u16 = 2;
pub(super) const NLM_F_ACK: u16 = 4;
pub(super) const NLM_F_DUMP: u16 = 0x300;
pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;

/// A request from the program.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    /// The whole message.
    pub(super) bytes: &'a [u8],
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
}

impl<'a> Request<'a> {
    /// The first message and the remaining bytes. `None` if there is no complete message.
    pub(super) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let length = u32_at(bytes, 0)? as usize;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER)?;
        let request = Self {
            bytes: message,
            kind: u16_at(message, 4)?,
            flags: u16_at(message, 6)?,
            sequence: u32_at(message, 8)?,
        };
        Some((request, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
    }

    /// The value of an attribute.
    pub(super) fn attribute(&self, wanted: u16) -> Option<&'a [u8]> {
        let mut rest = &self.bytes[HEADER..];
        loop {
            let length = usize::from(u16_at(rest, 0)?);
            let value = rest.get(4..length)?;
            // The upper two bits are flags.
            if u16_at(rest, 2)? & 0x3fff == wanted {
                return Some(value);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
    }

    pub(super) fn number(&self, wanted: u16) -> Option<u32> {
        self.attribute(wanted).and_then(|value| u32_at(value, 0))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Encoded attributes.
#[derive(Clone, Debug, Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub(super) fn add(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.0.extend(((value.len() + 4) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn text(&mut self, kind: u16, text: &str) -> &mut Self {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.add(kind, &bytes)
    }

    pub(super) fn nested(&mut self, kind: u16, inner: &Self) -> &mut Self {
        self.add(kind, &inner.0)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A message to the program.
pub(super) fn message(
    kind: u16,
    flags: u16,
    request: &Request<'_>,
    port: u32,
    body: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(request.sequence.to_ne_bytes());
    bytes.extend(port.to_ne_bytes());
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
