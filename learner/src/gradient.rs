//! Gradients of minibatches, and gradients that callers compute and apply.

use candle_core::Tensor;
use rollmesh_core::{
    batch::SampleBatch,
    policy::{AllReduce, Gradients},
    weights::Weights,
};

use super::{
    algorithm::{PARTS, Schedule},
    error::LearnError,
    optimizer::Optimizer,
    ranks::Ranks,
    rows::{Rows, TrainRows},
    stats::{GradientSums, UpdateStats},
    update::Learner,
};

/// A gradient that the optimiser can apply, its norm before it was clipped, and the parts of the loss.
pub(super) struct Gradient {
    pub(super) values: Tensor,
    pub(super) norm: f64,
    pub(super) parts: [f32; PARTS],
}

impl Learner {
    /// Returns the gradient of the loss over a whole batch, clipped as a step would clip it. Changes nothing.
    ///
    /// # Errors
    /// As [`update`](Self::update), but [`LearnError::NotFinite`] for a gradient that is not finite.
    pub fn compute_gradients(&mut self, batch: &SampleBatch) -> Result<(Gradients, UpdateStats), LearnError> {
        self.gradients_of(batch, Ranks::alone())
    }

    /// Returns the gradient of the loss over the batches of all ranks, the same on all ranks. Changes nothing.
    ///
    /// # Errors
    /// As [`compute_gradients`](Self::compute_gradients) and [`update_with`](Self::update_with).
    pub fn compute_gradients_with(
        &mut self,
        batch: &SampleBatch,
        ranks: &mut dyn AllReduce,
    ) -> Result<(Gradients, UpdateStats), LearnError> {
        self.gradients_of(batch, Ranks::of(ranks))
    }

    fn gradients_of(
        &mut self,
        batch: &SampleBatch,
        mut ranks: Ranks<'_>,
    ) -> Result<(Gradients, UpdateStats), LearnError> {
        let (rows, joined) = self.begin(batch, &mut ranks)?;
        let schedule = self.schedule(&joined);
        let mut whole = rows.as_ref().map(TrainRows::whole).transpose()?;
        if self.objective().needs().old {
            let units = rows.as_ref().map_or_else(Vec::new, |rows| (0..rows.units() as u32).collect());
            let normals = ranks.normals(rows.as_ref(), std::iter::once(units))?;
            whole.iter_mut().zip(normals).for_each(|(whole, normal)| whole.normal = normal);
        }
        let Gradient { values, norm, parts } =
            self.gradient(whole.as_ref(), schedule, &mut ranks)?.ok_or(LearnError::NotFinite)?;
        let mut sums = GradientSums::default();
        sums.add(parts, norm);
        let learning_rate = self.lr_after(joined.env_steps);
        let stats = UpdateStats { gradient_steps: 0, learning_rate, ..self.stats(&joined, &sums, schedule) };
        Ok((Gradients(self.model.unflat(self.weights.version(), &values)?), stats))
    }

    /// Takes one step along gradients, as they are, and publishes the next version of the weights. The clock of
    /// annealing does not advance, since gradients do not contain the number of their steps.
    ///
    /// # Errors
    /// [`LearnError::Model`] for gradients of another model, [`LearnError::Diverged`] as [`update`](Self::update).
    pub fn apply_gradients(&mut self, gradients: &Gradients) -> Result<(Weights, UpdateStats), LearnError> {
        self.refresh()?;
        let gradient = self.model.flat(&gradients.0)?;
        self.stale = true;
        let kl_coeff = self.objective().kl_coeff(self.adaptive);
        let mut stats = UpdateStats { learning_rate: self.lr(), kl_coeff, ..UpdateStats::default() };
        match Optimizer::norm(&gradient)? {
            Some(norm) => {
                self.step(&gradient)?;
                (stats.grad_norm, stats.gradient_steps) = (norm, 1);
            }
            None => {
                self.skip_step()?;
                stats.skipped_steps = 1;
            }
        }
        self.publish()?;
        Ok((self.weights.clone(), stats))
    }

    /// Returns the clipped gradient of the loss over rows of this rank and of others; `None` if loss or gradient are
    /// not finite.
    pub(super) fn gradient(
        &self,
        rows: Option<&Rows>,
        schedule: Schedule,
        ranks: &mut Ranks<'_>,
    ) -> Result<Option<Gradient>, LearnError> {
        let own = rows.map(|rows| self.own_gradient(rows, schedule)).transpose()?;
        let (total, parts, values) = match ranks.others() {
            None => own.ok_or(LearnError::EmptyBatch)?,
            Some(group) => {
                // One message sums all numbers on which ranks base decisions, so that all decide alike.
                let n = self.optimizer.len();
                let mut sums = Vec::with_capacity(n + 1 + PARTS);
                if let Some((total, parts, values)) = &own {
                    match values {
                        Some(values) => sums.extend(values.to_vec1::<f32>()?),
                        None => sums.resize(n, 0.0),
                    }
                    sums.push(*total);
                    sums.extend(parts);
                }
                sums.resize(n + 1 + PARTS, 0.0);
                group.all_reduce("gradients", &mut sums, rows.map_or(0.0, |rows| rows.len() as f64))?;
                let mut parts = [0.0; PARTS];
                parts.copy_from_slice(&sums[n + 1..]);
                let total = sums[n];
                sums.truncate(n);
                (total, parts, Some(Tensor::from_vec(sums, n, &self.device)?))
            }
        };
        let Some(values) = values.filter(|_| total.is_finite()) else { return Ok(None) };
        let clipped = self.optimizer.clipped(values)?;
        Ok(clipped.map(|(values, norm)| Gradient { values, norm, parts }))
    }

    /// Returns the loss, its parts, and its gradient if the loss is finite.
    #[allow(clippy::type_complexity)]
    fn own_gradient(&self, rows: &Rows, schedule: Schedule) -> Result<(f32, [f32; PARTS], Option<Tensor>), LearnError> {
        let (inputs, values) = self.model.forward(&rows.obs, rows.memory.as_ref())?;
        let dist = self.model.head().dist(&inputs)?;
        let loss = self.objective().loss(&dist, &values, rows, schedule)?;
        // One transfer from the device for all of them.
        let [a, b, c, d, e] = &loss.parts;
        let numbers: Vec<f32> = Tensor::stack(&[&loss.total.detach(), a, b, c, d, e], 0)?.to_vec1()?;
        let mut parts = [0.0; PARTS];
        parts.copy_from_slice(&numbers[1..]);
        let total = numbers[0];
        let gradient = total.is_finite().then(|| self.optimizer.gradient(&loss.total.backward()?)).transpose()?;
        Ok((total, parts, gradient))
    }
}
