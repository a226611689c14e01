//! Sessions that come by chance, servers that claim ready pods from what their watches have told
//! them so far, and a cluster that starts so many pods in a second.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Sessions that are asked for in a second, by chance.
    pub rate: f64,
    /// So many more at one moment in the middle.
    pub burst: usize,
    pub servers: u64,
    /// Ready pods that are kept.
    pub pool: usize,
    /// All servers try the first pod they see, in place of one by chance.
    pub first: bool,
    /// Pods that a server tries to claim before it makes one.
    pub tries: usize,
    /// Pods that the cluster starts in a second.
    pub starts: f64,
    /// Seconds from a pod's creation to its guest's first answer.
    pub ready: f64,
    /// Seconds until every server has heard of a claim.
    pub lag: f64,
    /// Seconds that a try of a claim takes.
    pub claim: f64,
    /// Seconds that are simulated; the first tenth is not counted.
    pub seconds: f64,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            rate: 17.0,
            burst: 0,
            servers: 3,
            pool: 0,
            first: false,
            tries: 3,
            starts: 100.0,
            ready: 1.3,
            lag: 0.05,
            claim: 0.05,
            seconds: 600.0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Outcome {
    /// The part that got a ready pod.
    pub pooled: f64,
    /// Claims that the API server refused, for each session.
    pub refused: f64,
    /// Seconds until the first result.
    pub p50: f64,
    pub p99: f64,
    /// Writes of all servers in a second: the mean, and the most.
    pub writes: f64,
    pub most: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Asked,
    Burst,
    /// A pod of the pool is ready.
    Parked,
}

/// A ready pod, and who claimed it when.
struct Pod {
    claimed: Option<(u64, f64)>,
}

/// Numbers by chance, the same in each run.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most.max(1)
    }

    /// Time to the next of so many in a second.
    fn gap(&mut self, rate: f64) -> f64 {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        -(1.0 - unit).ln() / rate
    }
}

struct World<'a> {
    load: &'a Load,
    chance: Chance,
    /// In microseconds.
    events: BinaryHeap<Reverse<(u64, Event)>>,
    pods: Vec<Pod>,
    making: usize,
    /// When the cluster can start the next pod.
    free: f64,
    /// Writes in each second.
    writes: BTreeMap<u64, u64>,
    waits: Vec<f64>,
    pooled: u64,
    refused: u64,
}

pub(crate) fn simulate(load: &Load) -> Outcome {
    let mut world = World {
        load,
        chance: Chance(7),
        events: BinaryHeap::new(),
        pods: Vec::new(),
        making: 0,
        free: 0.0,
        writes: BTreeMap::new(),
        waits: Vec::new(),
        pooled: 0,
        refused: 0,
    };
    world.later(0.0, Event::Asked);
    if load.burst > 0 {
        world.later(load.seconds / 2.0, Event::Burst);
    }
    while let Some(Reverse((at, event))) = world.events.pop() {
        let now = at as f64 / 1e6;
        if now > load.seconds {
            break;
        }
        match event {
            Event::Asked => {
                let gap = world.chance.gap(load.rate);
                world.later(now + gap, Event::Asked);
                world.ask(now);
            }
            Event::Burst => (0..load.burst).for_each(|_| world.ask(now)),
            Event::Parked => {
                world.making -= 1;
                world.pods.push(Pod { claimed: None });
            }
        }
        world.refill(now);
    }
    world.outcome()
}

impl World<'_> {
    fn later(&mut self, at: f64, event: Event) {
        self.events.push(Reverse(((at * 1e6) as u64, event)));
    }

    fn write(&mut self, at: f64, count: u64) {
        *self.writes.entry(at as u64).or_default() += count;
    }

    /// When a pod that is created now answers.
    fn start(&mut self, now: f64) -> f64 {
        self.write(now, 1);
        self.free = self.free.max(now) + 1.0 / self.load.starts;
        self.free + self.load.ready
    }

    fn refill(&mut self, now: f64) {
        let lag = self.load.lag;
        self.pods
            .retain(|pod| pod.claimed.is_none_or(|(_, when)| when + lag > now));
        let ready = self.pods.iter().filter(|pod| pod.claimed.is_none()).count();
        for _ in ready + self.making..self.load.pool {
            let done = self.start(now);
            self.making += 1;
            self.later(done, Event::Parked);
        }
    }

    /// A session for somebody, at one of the servers.
    fn ask(&mut self, now: f64) {
        let server = self.chance.below(self.load.servers);
        let mut at = now;
        let mut refused = 0;
        // What this server takes for free: it has not heard of the latest claims of others.
        let mut seen: Vec<usize> = (0..self.pods.len())
            .filter(|i| match self.pods[*i].claimed {
                None => true,
                Some((by, when)) => by != server && when + self.load.lag > now,
            })
            .collect();
        let mut wait = None;
        while !seen.is_empty() && refused < self.load.tries as u64 {
            let pick = match self.load.first {
                true => 0,
                false => self.chance.below(seen.len() as u64) as usize,
            };
            let pod = seen.remove(pick);
            // The lease of its name, and the change of the pod; refused, the lease goes again.
            let free = self.pods[pod].claimed.is_none();
            self.write(at, if free { 2 } else { 3 });
            at += self.load.claim;
            if free {
                self.pods[pod].claimed = Some((server, now));
                wait = Some(at - now);
                break;
            }
            refused += 1;
        }
        let pooled = wait.is_some();
        let wait = wait.unwrap_or_else(|| self.start(at) - now);
        // In the end its pod is removed, and the lease.
        self.write(at, if pooled { 2 } else { 1 });
        if now >= self.load.seconds / 10.0 {
            self.waits.push(wait);
            self.pooled += u64::from(pooled);
            self.refused += refused;
        }
    }

    fn outcome(mut self) -> Outcome {
        self.waits.sort_by(f64::total_cmp);
        let count = self.waits.len().max(1);
        let at = |part: f64| {
            let index = (count as f64 * part) as usize;
            self.waits
                .get(index.min(count - 1))
                .copied()
                .unwrap_or_default()
        };
        let from = (self.load.seconds / 10.0) as u64;
        let counted: Vec<u64> = self.writes.range(from..).map(|(_, n)| *n).collect();
        Outcome {
            pooled: self.pooled as f64 / count as f64,
            refused: self.refused as f64 / count as f64,
            p50: at(0.5),
            p99: at(0.99),
            writes: counted.iter().sum::<u64>() as f64 / counted.len().max(1) as f64,
            most: counted.iter().copied().max().unwrap_or_default(),
        }
    }
}
