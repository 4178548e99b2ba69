//! Seconds per stage.

use std::time::Instant;

/// What time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Sampling.
    Rollout,
    /// Judging.
    Reward,
    /// Advantages, reference scores, forward, backward, optimizer.
    Train,
    /// Making a version from the master weights.
    Quantize,
    /// Store and engine.
    Publish,
}

impl Stage {
    /// Every stage in flow order, with its name in metrics.
    pub const ALL: [(Stage, &'static str); 5] = [
        (Stage::Rollout, "rollout"),
        (Stage::Reward, "reward"),
        (Stage::Train, "train"),
        (Stage::Quantize, "quantize"),
        (Stage::Publish, "publish"),
    ];
}

/// Seconds of one step, per stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageSeconds([f64; 5]);

impl StageSeconds {
    /// Seconds of a stage.
    #[must_use]
    pub fn of(&self, stage: Stage) -> f64 {
        self.0[stage as usize]
    }
}

/// Gives the time since the last lap to a stage.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    last: Instant,
    seconds: StageSeconds,
}

impl Clock {
    /// Starts the first lap.
    #[must_use]
    pub fn start() -> Self {
        Clock { last: Instant::now(), seconds: StageSeconds::default() }
    }

    /// Ends a lap.
    pub fn lap(&mut self, stage: Stage) {
        let now = Instant::now();
        self.seconds.0[stage as usize] += (now - self.last).as_secs_f64();
        self.last = now;
    }

    /// What has been measured.
    #[must_use]
    pub fn seconds(&self) -> StageSeconds {
        self.seconds
    }
}
