//! Wrappers around a backend's parts: they write down what passes, or change it on the way.

use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use miles_core::Result;
use miles_core::network::ParamId;
use miles_core::plugin::{
    Backend, CancelToken, GenerateRequest, Loss, Rollout, RolloutEngine, SampleScores, ScoredPolicy, TrainBatch,
    Trainer, UpdateReport,
};
use miles_core::policy::{PolicyContext, PolicyStamp, PolicyTensor, Snapshot};

/// What passed through the parts of a backend.
#[derive(Clone, Default)]
pub struct Log {
    pub rollouts: Arc<Mutex<Vec<Rollout>>>,
    pub batches: Arc<Mutex<Vec<TrainBatch>>>,
}

/// The backend with every rollout and every batch that is trained on written down.
pub fn logged(backend: &Backend, log: &Log) -> Backend {
    let (engine, trainer, log) = (Arc::clone(&backend.engine), Arc::clone(&backend.trainer), log.clone());
    let of_trainer = log.clone();
    Backend {
        engine: Arc::new(move |options| Ok(Arc::new(LoggedEngine { inner: engine(options)?, log: log.clone() }))),
        trainer: Arc::new(move |inputs| {
            Ok(Box::new(LoggedTrainer { inner: trainer(inputs)?, log: of_trainer.clone() }))
        }),
        ..backend.clone()
    }
}

struct LoggedEngine {
    inner: Arc<dyn RolloutEngine>,
    log: Log,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl RolloutEngine for LoggedEngine {
    async fn load(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        self.inner.load(snapshot).await
    }

    fn loaded(&self) -> Option<PolicyStamp> {
        self.inner.loaded()
    }

    async fn generate(&self, request: &GenerateRequest, cancel: &CancelToken) -> Result<Rollout> {
        let rollout = self.inner.generate(request, cancel).await?;
        self.log.rollouts.lock().unwrap().push(rollout.clone());
        Ok(rollout)
    }

    fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        self.inner.operand(id)
    }
}

struct LoggedTrainer {
    inner: Box<dyn Trainer>,
    log: Log,
}

#[deny(clippy::missing_trait_methods)]
impl Trainer for LoggedTrainer {
    fn score(&mut self, policy: ScoredPolicy, batch: &TrainBatch) -> Result<Vec<SampleScores>> {
        self.inner.score(policy, batch)
    }

    fn update(&mut self, batch: &TrainBatch, loss: &dyn Loss, learning_rate: f64) -> Result<UpdateReport> {
        self.log.batches.lock().unwrap().push(batch.clone());
        self.inner.update(batch, loss, learning_rate)
    }

    fn publish(&mut self, context: PolicyContext<'_>) -> Result<Arc<Snapshot>> {
        self.inner.publish(context)
    }

    fn save(&self, directory: &Path) -> Result<()> {
        self.inner.save(directory)
    }

    fn restore(&mut self, directory: &Path) -> Result<()> {
        self.inner.restore(directory)
    }

    fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        self.inner.operand(id)
    }
}

/// What happens to the version that an engine is told to load: the one to load instead, or none at all.
pub type Delivery = Arc<dyn Fn(Arc<Snapshot>) -> Option<Arc<Snapshot>> + Send + Sync>;

/// The backend with versions changed on their way to the engine. A forging engine says that it samples from the
/// version that it was told to load.
pub fn delivering(backend: &Backend, delivery: Delivery, forging: bool) -> Backend {
    let engine = Arc::clone(&backend.engine);
    let wrap = move |options| {
        let (inner, delivery) = (engine(options)?, Arc::clone(&delivery));
        Ok(Arc::new(Delivering { inner, delivery, forging, told: Mutex::new(None) }) as Arc<dyn RolloutEngine>)
    };
    Backend { engine: Arc::new(wrap), ..backend.clone() }
}

struct Delivering {
    inner: Arc<dyn RolloutEngine>,
    delivery: Delivery,
    forging: bool,
    told: Mutex<Option<PolicyStamp>>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl RolloutEngine for Delivering {
    async fn load(&self, snapshot: Arc<Snapshot>) -> Result<()> {
        *self.told.lock().unwrap() = Some(snapshot.stamp());
        match (self.delivery)(snapshot) {
            Some(delivered) => self.inner.load(delivered).await,
            None => Ok(()),
        }
    }

    fn loaded(&self) -> Option<PolicyStamp> {
        self.inner.loaded()
    }

    async fn generate(&self, request: &GenerateRequest, cancel: &CancelToken) -> Result<Rollout> {
        let mut rollout = self.inner.generate(request, cancel).await?;
        if self.forging {
            rollout.stamp = self.told.lock().unwrap().unwrap();
            rollout.stamps = vec![rollout.stamp];
        }
        Ok(rollout)
    }

    fn operand(&self, id: ParamId) -> Result<PolicyTensor> {
        self.inner.operand(id)
    }
}
