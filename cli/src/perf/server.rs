//! The listening end of a measurement.

use std::net::{IpAddr, SocketAddr};

use super::lane::Lane;
use super::plan::{Hello, Plan, Ready, Step, Welcome};
use super::{SERVICE, frames};
use crate::args::{Measure, Perf};
use crate::device::Chosen;
use crate::failure::{Failure, Outcome};
use crate::output::print;
use crate::pair::ListenOptions;
use crate::rendezvous::Rendezvous;

/// Runs the listening end for one client.
pub(super) fn run(arguments: &Perf, address: IpAddr) -> Outcome {
    let address = SocketAddr::new(address, arguments.port);
    let beginning = ListenOptions { service: SERVICE, address, options: &arguments.pair };
    let (chosen, listener) =
        beginning.listen(|chosen| format!("device    {}", chosen.device_line()))?;
    serve(&chosen, listener.accept()?, arguments.pair.json)
}

struct Server {
    lanes: Vec<Lane>,
    peer: Rendezvous,
    plan: Plan,
}

fn serve(chosen: &Chosen, mut peer: Rendezvous, json: bool) -> Outcome {
    let hello: Hello = peer.receive()?;
    hello.check()?;
    if let Some(plan) = &hello.frames {
        announce(&peer, json)?;
        let served = frames::serve(chosen, &mut peer, plan);
        return served.inspect_err(|failure| peer.abort(&failure.to_string()));
    }
    let plan = hello.plan.clone();
    let lanes = (0..plan.qps).map(|_| Lane::new(chosen, &plan)).collect::<Outcome<_>>()?;
    let mut server = Server { lanes, peer, plan };
    let served = server.connect(&hello).and_then(|()| announce(&server.peer, json));
    let served = served.and_then(|()| server.rounds());
    served.inspect_err(|failure| server.peer.abort(&failure.to_string()))
}

fn announce(peer: &Rendezvous, json: bool) -> Outcome {
    if json { Ok(()) } else { print(format_args!("peer      {}", peer.peer())) }
}

impl Server {
    fn connect(&mut self, hello: &Hello) -> Outcome {
        let Self { lanes, peer, .. } = self;
        let mut ends = lanes.iter_mut().zip(&hello.lanes);
        ends.try_for_each(|(lane, end)| lane.connect(end, peer))?;
        let lanes = self.lanes.iter().map(Lane::end).collect::<Outcome<_>>()?;
        self.peer.send(&Welcome { lanes })
    }

    fn rounds(&mut self) -> Outcome {
        loop {
            match self.peer.receive()? {
                Step::Round { size } => self.round(size)?,
                Step::Goodbye => return Ok(()),
                Step::Going | Step::Over => {
                    return Err(Failure::failed("the peer ends a round that has not begun"));
                }
            }
        }
    }

    fn round(&mut self, size: u32) -> Outcome {
        let receives = match self.plan.measure {
            Measure::Lat | Measure::Frames => 2,
            Measure::Bw => 2 * self.plan.depth,
        };
        for lane in &mut self.lanes {
            lane.set_size(size, &self.plan)?;
            lane.receive(receives)?;
        }
        self.peer.send(&Ready { ready: true })?;
        let messages = self.plan.messages(size);
        match self.plan.measure {
            _ if self.plan.is_unseen() => {}
            Measure::Lat | Measure::Frames => self.answer(messages)?,
            Measure::Bw => self.receive_all(messages)?,
        }
        loop {
            match self.peer.receive()? {
                Step::Going => {}
                Step::Over => return self.peer.send(&Ready { ready: true }),
                other => {
                    let text = format!("the peer says {other:?} in the middle of a round");
                    return Err(Failure::failed(text));
                }
            }
        }
    }

    fn answer(&mut self, messages: u64) -> Outcome {
        let Self { lanes, peer, .. } = self;
        let Some(lane) = lanes.first_mut() else { return Ok(()) };
        for number in 0..messages {
            lane.arrival(number, peer)?;
            lane.send_one(number, peer)?;
        }
        lane.drain(peer)
    }

    fn receive_all(&mut self, messages: u64) -> Outcome {
        let Self { lanes, peer, .. } = self;
        let mut left = messages * lanes.len() as u64;
        while left > 0 {
            let before = left;
            for lane in lanes.iter_mut() {
                let mut taken = 0;
                while lane.poll()?.is_some() {
                    taken += 1;
                }
                lane.receive(taken)?;
                left -= u64::from(taken);
            }
            // The first lane's time-out serves all lanes.
            match lanes.first_mut() {
                Some(lane) if left == before => lane.link.pause(peer)?,
                Some(lane) => lane.link.made_progress(),
                None => {}
            }
        }
        Ok(())
    }
}
