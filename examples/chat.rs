//! A chat over multicast datagrams: all members of a group receive what one member sends.
//!
//! `cargo run --features soft --example chat [DEVICE]`; the default device is `soft`.

use std::error::Error;

use uverbs::ah::GRH_BYTES;
use uverbs::qp::{Datagram, Inline, PostFlags};
use uverbs::qp_type::Ud;
use uverbs::{
    AccessFlags, Buffer, Context, Gid, GlobalRoute, LinkLayer, MemoryRegion, PollError, op, raw,
};

/// Datagrams to a group go to this queue pair number, and carry the group's Q_Key.
const MULTICAST_QPN: u32 = 0xff_ffff;
const QKEY: u32 = 0x1111_1111;
/// On InfiniBand a subnet manager would give the group its LID.
const GROUP_LID: u16 = 0xc001;
/// The bytes of the longest line.
const LINE: usize = 60;
/// The number of receives that a member keeps posted.
const RECEIVES: usize = 16;

struct Member {
    name: &'static str,
    // Dropped before the region, into which it receives.
    qp: raw::QueuePair<Ud>,
    cq: raw::CompletionQueue,
    lines: MemoryRegion,
}

impl Member {
    fn join(context: &Context, name: &'static str, group: Gid) -> Result<Self, Box<dyn Error>> {
        let pd = context.alloc_pd()?;
        let cq = context.create_raw_cq(64).build()?;
        let mut qp = pd.create_raw_qp::<Ud>(cq.handle(), cq.handle()).build()?;
        qp.activate()?;
        let lid = if qp.link_layer() == LinkLayer::InfiniBand { GROUP_LID } else { 0 };
        qp.attach_multicast(group, lid)?;
        let bytes = RECEIVES * (GRH_BYTES + LINE);
        let lines = pd.register(Buffer::new(bytes)?, AccessFlags::LOCAL_WRITE)?;
        let mut member = Self { name, qp, cq, lines };
        for index in 0..RECEIVES {
            member.post_receive(index)?;
        }
        Ok(member)
    }

    /// Posts a receive, with space for the routing header and then the line.
    fn post_receive(&mut self, index: usize) -> uverbs::Result<()> {
        let length = GRH_BYTES + LINE;
        let sge = self.lines.sge(index * length, length)?;
        // SAFETY: the region outlives the queue pair, and its bytes are read only between
        // completion and reposting.
        unsafe { self.qp.post_receive(index as u64, &[sge])? };
        Ok(())
    }

    /// Sends a line to the group, as inline data.
    fn say(&mut self, group: Gid, words: &str) -> uverbs::Result<()> {
        let mut path = self.qp.address_of(&self.qp.endpoint())?;
        if self.qp.link_layer() == LinkLayer::InfiniBand {
            path.lid = GROUP_LID;
        }
        path.global = Some(GlobalRoute { destination: group, ..path.global.unwrap_or_default() });
        let ah = self.lines.pd().create_ah(&path)?;
        let to = ah.datagram(MULTICAST_QPN, QKEY);
        let line = format!("{}: {words}", self.name);
        let line = &line.as_bytes()[..line.len().min(LINE)];
        // SAFETY: inline data is copied by the post.
        unsafe {
            self.qp.post_send(
                0,
                op::To(Datagram(&to), op::Send),
                Inline(line),
                PostFlags::empty(),
            )?
        };
        Ok(())
    }

    /// Waits for the next line.
    fn hear(&mut self) -> Result<String, Box<dyn Error>> {
        let (index, length) = loop {
            match self.cq.poll() {
                Ok(done) if done.is_success() => break (done.wr_id() as usize, done.byte_len()),
                Ok(done) => return Err(format!("{:?}", done.to_work_completion()).into()),
                Err(PollError::Empty) => self.cq.context().poll_idle(),
                Err(error) => return Err(error.into()),
            }
        };
        let mut line = vec![0; (length as usize).saturating_sub(GRH_BYTES)];
        self.lines.view().read(index * (GRH_BYTES + LINE) + GRH_BYTES, &mut line)?;
        self.post_receive(index)?;
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = uverbs::device(&name)?.open()?;
    let group: Gid = "ff0e::c4a7".parse()?;
    let names = ["Ada", "Grace", "Edsger"];
    let mut members = names
        .into_iter()
        .map(|name| Member::join(&context, name, group))
        .collect::<Result<Vec<_>, _>>()?;
    for (speaker, words) in [(0, "is anybody here?"), (1, "yes"), (2, "so am I"), (0, "good")] {
        members[speaker].say(group, words)?;
        let heard = members.iter_mut().map(Member::hear).collect::<Result<Vec<_>, _>>()?;
        println!(
            "{}, heard by {}",
            heard[0],
            heard.iter().filter(|line| **line == heard[0]).count()
        );
    }
    Ok(())
}
