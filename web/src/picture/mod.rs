//! Pictures of the environments that have one: from a row of a trace to something to draw.
//!
//! A row becomes a [`Picture`] without the browser, and is tested so; drawing only reads it.

mod acrobot;
mod cart_pole;
mod cells;
mod mountain_car;
mod pen;

use rollmesh_core::env::pixel::{self, Channel};
use wasm_bindgen::JsValue;
use web_sys::CanvasRenderingContext2d;

pub(crate) use self::cells::css_color;
use self::{acrobot::Acrobot, cart_pole::CartPole, cells::Cells, mountain_car::MountainCar, pen::Pen};

/// How an environment is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A cart on a track and a pole on it.
    CartPole,
    /// A car in a valley.
    MountainCar,
    /// Two links that hang from a joint.
    Acrobot,
    /// A game on a grid, with these things in it.
    Cells(&'static [Channel]),
}

impl Kind {
    /// The kind of an environment by its registered name; none if its pictures are unknown.
    #[must_use]
    pub(crate) fn of(env: &str) -> Option<Self> {
        match env {
            "CartPole-v0" | "CartPole-v1" | "StatelessCartPole-v1" => Some(Self::CartPole),
            "MountainCar-v0" => Some(Self::MountainCar),
            "Acrobot-v1" => Some(Self::Acrobot),
            game => pixel::channels(game).map(Self::Cells),
        }
    }

    /// The picture of an observation; none if it is not of such an environment.
    #[must_use]
    pub(crate) fn picture(self, obs: &[f32]) -> Option<Picture> {
        match self {
            Self::CartPole => CartPole::of(obs).map(Picture::CartPole),
            Self::MountainCar => MountainCar::of(obs).map(Picture::MountainCar),
            Self::Acrobot => Acrobot::of(obs).map(Picture::Acrobot),
            Self::Cells(channels) => Cells::of(channels, obs).map(Picture::Cells),
        }
    }

    /// Steps a second that are good to watch, those of the environment's own time where it has one.
    #[must_use]
    pub(crate) const fn steps_per_s(self) -> u32 {
        match self {
            // A time step of CartPole is 20 ms.
            Self::CartPole => 50,
            Self::MountainCar => 30,
            // A time step of Acrobot is 200 ms: this is three times as fast.
            Self::Acrobot => 15,
            Self::Cells(_) => 10,
        }
    }

    /// What is to be seen, for people who cannot see it.
    #[must_use]
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::CartPole => "The cart on its track and the pole on it, as the watched slot saw them",
            Self::MountainCar => "The car in its valley and the flag on the hill, as the watched slot saw them",
            Self::Acrobot => "The two links and the line to reach, as the watched slot saw them",
            Self::Cells(_) => "The cells of the game, as the watched slot saw them",
        }
    }

    /// The things on the grid of a game, none for what is drawn otherwise.
    #[must_use]
    pub(crate) const fn legend(self) -> &'static [Channel] {
        match self {
            Self::Cells(channels) => channels,
            Self::CartPole | Self::MountainCar | Self::Acrobot => &[],
        }
    }
}

/// One moment of an environment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Picture {
    /// Of a CartPole.
    CartPole(CartPole),
    /// Of a MountainCar.
    MountainCar(MountainCar),
    /// Of an Acrobot.
    Acrobot(Acrobot),
    /// Of a game.
    Cells(Cells),
}

impl Picture {
    /// Draws it over whatever was on the canvas; `done` if the episode ended in this step.
    ///
    /// # Errors
    /// What the canvas says.
    pub(crate) fn draw(&self, context: &CanvasRenderingContext2d, size: (f64, f64), done: bool) -> Result<(), JsValue> {
        context.clear_rect(0.0, 0.0, size.0, size.1);
        let pen = Pen::new(context);
        match self {
            Self::CartPole(picture) => picture.draw(&pen, size, done),
            Self::MountainCar(picture) => picture.draw(&pen, size),
            Self::Acrobot(picture) => picture.draw(&pen, size),
            Self::Cells(picture) => picture.draw(&pen, size),
        }
    }

    /// What it shows in numbers, where there are any.
    #[must_use]
    pub(crate) fn caption(&self) -> String {
        match self {
            Self::CartPole(picture) => picture.caption(),
            Self::MountainCar(picture) => picture.caption(),
            Self::Acrobot(picture) => picture.caption(),
            Self::Cells(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::env::EnvRegistry;

    use super::*;

    #[test]
    fn every_kind_takes_the_observations_of_its_environments_and_no_others() {
        let envs = EnvRegistry::builtin();
        let drawn: Vec<_> = envs.iter().filter_map(|spec| Some((spec, Kind::of(&spec.name)?))).collect();
        assert_eq!(drawn.len(), 10);
        for (spec, kind) in drawn {
            let len = spec.spaces().unwrap().observation.shape().elements();
            assert!(kind.picture(&vec![0.0; len]).is_some(), "{}", spec.name);
            for wrong in [0, len - 1, len + 1] {
                assert_eq!(kind.picture(&vec![0.0; wrong]), None, "{} {wrong}", spec.name);
            }
        }
        assert_eq!(Kind::of("Taxi-v4"), None);
    }

    #[test]
    fn what_is_no_number_is_no_picture() {
        for kind in [Kind::CartPole, Kind::MountainCar, Kind::Acrobot] {
            let all = [2, 4, 6].map(|len| kind.picture(&vec![f32::NAN; len]));
            assert_eq!(all, [None, None, None]);
        }
    }
}
