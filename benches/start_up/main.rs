//! Creates a queue pair that is connected to itself, phase by phase. `libibverbs.c` does the same
//! with libibverbs. `count` runs both and compares their system calls; see docs/start-up.md.

use std::fs;

use uverbs::qp_type::Rc;
use uverbs::{AccessFlags, Buffer};

/// Marks a place in the trace: it looks for a file of this name.
fn phase(name: &str) {
    let _ = fs::metadata(name);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().skip(1).find(|arg| arg != "--bench");
    phase("/phase/open");
    let context = uverbs::device(name.as_deref().unwrap_or("soft"))?.open()?;
    phase("/phase/memory");
    let pd = context.alloc_pd()?;
    let region = pd.register(Buffer::new(4096)?, AccessFlags::LOCAL_WRITE)?;
    phase("/phase/completion-queue");
    let cq = context.create_raw_cq(64).build()?;
    phase("/phase/queue-pair");
    let builder = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).max_send_wr(16).max_recv_wr(16);
    let mut qp = builder.build()?;
    phase("/phase/connect");
    let own = qp.endpoint();
    qp.connect(&own)?;
    phase("/phase/close");
    drop((qp, cq, region, pd, context));
    phase("/phase/end");
    Ok(())
}
