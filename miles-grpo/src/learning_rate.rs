//! The learning rate as a pure function of the step.
//!
//! ```text
//! step < warmup:  base * (step + 1) / warmup
//! then, with p = (step - warmup) / (steps - warmup):
//!   constant  base
//!   linear    base * (1 - p)
//!   cosine    base * (1 + cos(pi p)) / 2
//! ```

use crate::config::LearningRateSchedule;

/// Base rate, warm-up and course.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// Rate after warm-up.
    pub base: f64,
    /// Steps of warm-up.
    pub warmup_steps: u64,
    /// Course after warm-up.
    pub schedule: LearningRateSchedule,
    /// Steps of the whole run.
    pub steps: u64,
}

impl LearningRate {
    /// Rate of a step, counted from 0.
    #[must_use]
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.base * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let rest = self.steps.saturating_sub(self.warmup_steps).max(1);
        let passed = ((step - self.warmup_steps) as f64 / rest as f64).min(1.0);
        match self.schedule {
            LearningRateSchedule::Constant => self.base,
            LearningRateSchedule::Linear => self.base * (1.0 - passed),
            LearningRateSchedule::Cosine => self.base * 0.5 * (1.0 + libm::cos(std::f64::consts::PI * passed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: LearningRateSchedule) -> Vec<f64> {
        let rate = LearningRate { base: 8.0, warmup_steps: 4, schedule, steps: 8 };
        (0..9).map(|step| rate.at(step)).collect()
    }

    #[test]
    fn every_course_warms_up_and_keeps_its_shape() {
        assert_eq!(rates(LearningRateSchedule::Constant), [2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]);
        assert_eq!(rates(LearningRateSchedule::Linear), [2.0, 4.0, 6.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0]);
        let cosine = rates(LearningRateSchedule::Cosine);
        assert_eq!(cosine[4], 8.0);
        assert!((cosine[6] - 4.0).abs() < 1e-12 && cosine[8].abs() < 1e-12, "{cosine:?}");
    }

    #[test]
    fn without_warmup_the_first_step_has_the_base_rate() {
        let rate = LearningRate { base: 0.5, warmup_steps: 0, schedule: LearningRateSchedule::Linear, steps: 2 };
        assert_eq!([rate.at(0), rate.at(1)], [0.5, 0.25]);
    }

    #[test]
    fn a_run_shorter_than_the_warmup_ends_while_the_rate_rises() {
        let rate = LearningRate { base: 1.0, warmup_steps: 4, schedule: LearningRateSchedule::Linear, steps: 2 };
        assert_eq!([rate.at(0), rate.at(1)], [0.25, 0.5]);
    }
}
