//! What of the prompts is not computed yet when a step begins: the law of the backlog.
//!
//! A step computes what there is of prompts, up to its room R, and what comes meanwhile joins at its end. So the backlog V at the
//! beginning of steps is a Markov chain, V' = (V − R)⁺ + A(t(V)), A(t) being what comes in t: a bulk queue (Bailey 1954) whose service
//! depends on what is served. Long steps gather more for the next one, and only a full step leaves any: both are in the chain, and
//! neither is in a mean. The law is laid on a grid, what comes is summed by Panjer's recursion (1981), and the chain is solved by the
//! elimination of Grassmann, Taksar and Heyman (1985), which subtracts nothing.
//!
//! Sampling the chain lost: 10⁵ steps would be needed, and a plan must not depend on a seed. Two moments lost: percentiles need the law.

/// Prompts as they come.
#[derive(Clone, Debug)]
pub(super) struct Prompts {
    /// Mean tokens to be computed; over 0.
    pub mean: f64,
    /// Their mean square.
    pub square: f64,
    largest: f64,
    /// Prompts of equal weight.
    each: Vec<f64>,
}

impl Prompts {
    /// These prompts, brought to this mean.
    pub fn new(mut each: Vec<f64>, mean: f64) -> Prompts {
        let count = each.len().max(1) as f64;
        let mean = mean.max(1.0);
        let is = each.iter().sum::<f64>() / count;
        each.iter_mut().for_each(|tokens| *tokens = if is > 0.0 { *tokens * mean / is } else { mean });
        let square = each.iter().map(|tokens| tokens * tokens).sum::<f64>() / count;
        let largest = each.iter().copied().fold(mean, f64::max);
        Prompts { mean, square, largest, each }
    }

    /// Tokens that a prompt brings into a step of this room, by its tokens rather than by its number: how many more they are.
    pub fn heavier(&self, room: f64) -> f64 {
        let (mut sum, mut squares) = (0.0, 0.0);
        for tokens in self.each.iter().map(|tokens| tokens.min(room)) {
            sum += tokens;
            squares += tokens * tokens;
        }
        squares / sum.max(1e-9) - sum / self.each.len() as f64
    }

    /// By cells, each prompt on the two cells around it so that the mean is kept; and the variance that this adds.
    fn on_grid(&self, cell: f64) -> (Vec<f64>, f64) {
        let mut out = vec![0.0; libm::ceil(self.largest / cell) as usize + 2];
        let share = 1.0 / self.each.len() as f64;
        let mut added = 0.0;
        for tokens in &self.each {
            let place = tokens / cell;
            let low = libm::floor(place);
            let above = place - low;
            out[low as usize] += share * (1.0 - above);
            out[low as usize + 1] += share * above;
            added += share * above * (1.0 - above) * cell * cell;
        }
        (out, added)
    }
}

/// What fills and empties the backlog.
pub(super) struct Course<'a> {
    /// Prompts.
    pub prompts: &'a Prompts,
    /// How many a second.
    pub rate: f64,
    /// Variance of their number over that of Poisson arrivals.
    pub variance: f64,
    /// Tokens of prompts that a step has room for.
    pub room: f64,
    /// Steps that a request decodes.
    pub decoding: f64,
    /// Seconds of a step of decodes alone.
    pub empty_s: f64,
    /// Seconds of a step with so many tokens of prompts.
    pub step_s: &'a dyn Fn(f64) -> f64,
}

/// See the module. All shares are of steps, those without a prompt included.
#[derive(Clone, Debug)]
pub(super) struct Backlog {
    /// Tokens of a cell.
    pub cell: f64,
    /// Cells of a step's room.
    pub room: usize,
    /// Share of the steps that begin with so many cells.
    pub law: Vec<f64>,
    /// How long these take, s.
    pub seconds: Vec<f64>,
    /// Share of the time in which nothing is done.
    pub idle: f64,
    /// Mean step, s.
    pub step_s: f64,
    /// Seconds that a prompt adds to the steps.
    pub adds_s: f64,
    /// Mean backlog at the beginning of a step that follows another, tokens.
    pub mean: f64,
    /// Variance of the prompts that a step computes over their mean.
    pub dispersion: f64,
    /// Share of the time of steps up to and including those that begin with so many cells.
    by_time: Vec<f64>,
    /// P(what comes in a step ≤ cells), by the cells at its beginning.
    came: Vec<Vec<f64>>,
}

/// Multiplications of an elimination: some 50 µs.
const WORK: f64 = 250_000.0;
const MOST_CELLS: f64 = 400.0;
/// Decay lengths of a tail that are kept: what is left out is e^−7.5 of it.
const TAIL: f64 = 7.5;
/// Steps fuller than this on average leave a backlog that the grid can't hold.
const FULLEST: f64 = 0.985;

impl Backlog {
    /// The law; `None` where steps are full and do not keep up, or nearly so.
    pub fn new(course: &Course<'_>) -> Option<Backlog> {
        let Course { prompts, rate, room, .. } = *course;
        let (cell, per_room, count) = grid(course)?;
        let mut seconds: Vec<f64> =
            (0..=count).map(|cells| (course.step_s)((cells as f64 * cell).min(room))).collect();
        seconds[0] = course.empty_s;
        let (sizes, added) = prompts.on_grid(cell);
        // What the grid adds to the variance is taken off that of the number.
        let variance = course.variance - added / (prompts.mean * prompts.mean);
        let last = per_room.min(count);
        let mut came: Vec<Vec<f64>> =
            seconds[..=last].iter().map(|s| compound(rate * s, variance, &sizes, count)).collect();
        // With no backlog there are steps of decodes alone until somebody comes, or, once nobody decodes, none.
        let nobody = came[0][0].min(1.0 - 1e-12);
        let empties = libm::pow(nobody, course.decoding);
        let mut from_none = vec![0.0; count + 1];
        for (cells, share) in came[0].iter().enumerate().skip(1) {
            from_none[cells] += (1.0 - empties) * share / (1.0 - nobody);
        }
        for (cells, share) in sizes.iter().enumerate() {
            from_none[cells.clamp(1, count)] += empties * share;
        }
        let mut law = stationary(&came, &from_none, per_room, count);
        let visits = law[0];
        law[0] *= if course.decoding > 0.0 { (1.0 - empties) / (1.0 - nobody) } else { 0.0 };
        let steps: f64 = law.iter().sum();
        law.iter_mut().for_each(|share| *share /= steps);
        let idle_s = visits / steps * empties / rate;
        came.iter_mut().for_each(|law| cumulate(law));
        let found = Backlog {
            cell,
            room: per_room,
            idle: 0.0,
            step_s: 0.0,
            adds_s: 0.0,
            mean: 0.0,
            dispersion: 0.0,
            by_time: Vec::new(),
            law,
            seconds,
            came,
        };
        Some(found.summed(prompts.mean, rate, idle_s))
    }

    /// With the figures that follow from the law. `idle_s`: idle time per step, s.
    fn summed(mut self, prompt: f64, rate: f64, idle_s: f64) -> Backlog {
        let step: f64 = self.law.iter().zip(&self.seconds).map(|(share, s)| share * s).sum();
        let mut computed = (0.0, 0.0);
        let mut up_to = 0.0;
        for (cells, (share, s)) in self.law.iter().zip(&self.seconds).enumerate() {
            let tokens = cells.min(self.room) as f64 * self.cell;
            computed = (computed.0 + share * tokens, computed.1 + share * tokens * tokens);
            self.mean += share * self.left(cells);
            up_to += share * s / step;
            self.by_time.push(up_to);
        }
        self.idle = idle_s / (idle_s + step);
        self.step_s = step;
        self.adds_s = (step - self.seconds[0]).max(0.0) / (rate * (step + idle_s));
        // While somebody decodes, steps follow each other: what comes in one of them, whatever idle times there are beside.
        self.mean += rate * prompt * self.seconds[0] / (1.0 - (rate * self.adds_s).min(0.99));
        self.dispersion = (computed.1 / computed.0 - computed.0).max(0.0) / prompt;
        self
    }

    /// Cells at the beginning of the step that is met at this place of the time of steps.
    pub fn met(&self, place: f64) -> usize {
        self.by_time.partition_point(|&up_to| up_to < place).min(self.law.len() - 1)
    }

    /// Tokens that come in a step that begins with so many cells, at this place of their law.
    pub fn comes(&self, cells: usize, place: f64) -> f64 {
        let law = &self.came[cells.min(self.came.len() - 1)];
        law.partition_point(|&up_to| up_to < place) as f64 * self.cell
    }

    /// Tokens that such a step leaves over.
    pub fn left(&self, cells: usize) -> f64 {
        cells.saturating_sub(self.room) as f64 * self.cell
    }

    /// A mean over steps by the tokens that they compute: what a token meets.
    pub fn by_tokens(&self, figure: impl Fn(usize) -> f64) -> f64 {
        let (mut sum, mut all) = (0.0, 0.0);
        for (cells, share) in self.law.iter().enumerate().skip(1) {
            let computed = share * cells.min(self.room) as f64;
            sum += computed * figure(cells);
            all += computed;
        }
        if all > 0.0 { sum / all } else { 0.0 }
    }
}

/// How much of a backlog arrivals meet whose variance is v times that of Poisson arrivals, where that is less: what Krämer and
/// Langenbach-Belz (1976) take off the wait in a queue. `used`: share of the time that the work takes; `sizes`: squared coefficient
/// of variation of its pieces.
pub(super) fn evens(v: f64, used: f64, sizes: f64) -> f64 {
    if v >= 1.0 || used <= 1e-6 {
        return 1.0;
    }
    let both = (v + sizes).max(1e-9);
    let even = libm::exp(-2.0 * (1.0 - used) * (1.0 - v) * (1.0 - v) / (3.0 * used * both));
    (both / (1.0 + sizes) * even).clamp(0.0, 1.0)
}

/// Tokens of a cell, cells of the room, and the last cell: as far as the backlog reaches, as fine as the work allows.
fn grid(course: &Course<'_>) -> Option<(f64, usize, usize)> {
    let Course { prompts, rate, room, .. } = *course;
    let full_s = (course.step_s)(room);
    let brought = rate * full_s * prompts.mean;
    if brought.is_nan() || brought >= FULLEST * room {
        return None;
    }
    let each = prompts.square + (course.variance - 1.0) * prompts.mean * prompts.mean;
    let spread = rate * full_s * each.max(0.0);
    // Past the room the backlog falls off as exp(−2 (R − brought) x / variance).
    let tail = 0.5 * TAIL * spread / (room - brought);
    let reach = (brought + 4.5 * libm::sqrt(spread) + prompts.largest).max(2.0 * prompts.mean) + tail;
    let fine = (0.5 * prompts.mean).min(room / 10.0);
    let affordable = libm::cbrt(WORK * (reach / room).max(1.0)).min(MOST_CELLS);
    let cells = (reach / fine).clamp(8.0, affordable.max(8.0));
    let per_room = libm::round(room * cells / reach).max(2.0);
    let cell = room / per_room;
    let count = libm::ceil(reach / cell).clamp(4.0, MOST_CELLS);
    Some((cell, per_room as usize, count as usize))
}

/// The law of what comes while `mean` prompts come on average: a negative binomial number of them, Poisson or binomial, by the
/// variance over the mean. What lies past the last cell is put on it.
fn compound(mean: f64, variance: f64, sizes: &[f64], last: usize) -> Vec<f64> {
    let none = 1.0 - sizes[0];
    let excess = variance.max(0.05) - 1.0;
    // Panjer's a and b, and the chance of no cell.
    let (a, b, first) = if excess.abs() < 1e-3 {
        (0.0, mean, libm::exp(-mean * none))
    } else if excess > 0.0 {
        let tries = mean / excess;
        let a = excess / (1.0 + excess);
        (a, (tries - 1.0) * a, libm::pow(1.0 + excess * none, -tries))
    } else {
        let tries = libm::ceil(mean / -excess - 1e-9).max(1.0);
        let chance = (mean / tries).min(0.999);
        let odds = chance / (1.0 - chance);
        (-odds, (tries + 1.0) * odds, libm::pow(1.0 - chance * none, tries))
    };
    let mut out = vec![0.0; last + 1];
    out[0] = first;
    let by_cells: Vec<f64> = sizes.iter().enumerate().map(|(cells, share)| cells as f64 * share).collect();
    let scale = 1.0 / (1.0 - a * sizes[0]);
    let mut sum = first;
    for s in 1..=last {
        let reach = s.min(sizes.len() - 1);
        let before = &out[s - reach..s];
        let dot = |of: &[f64]| of[1..=reach].iter().zip(before.iter().rev()).map(|(x, y)| x * y).sum::<f64>();
        let plain = if a == 0.0 { 0.0 } else { a * dot(sizes) };
        let share = (scale * (plain + b / s as f64 * dot(&by_cells))).max(0.0);
        out[s] = share;
        sum += share;
    }
    out[last] += (1.0 - sum).max(0.0);
    out
}

/// The stationary law, by elimination from the far end. `came`: what comes in a step that begins with so many cells, the last for
/// all fuller ones; `from_none`: where an empty backlog goes.
fn stationary(came: &[Vec<f64>], from_none: &[f64], room: usize, count: usize) -> Vec<f64> {
    let width = count + 1;
    let mut rows = vec![0.0; width * width];
    rows[..width].copy_from_slice(from_none);
    for cells in 1..=count {
        let kept = cells.saturating_sub(room);
        for (more, share) in came[cells.min(came.len() - 1)].iter().enumerate() {
            rows[cells * width + (kept + more).min(count)] += share;
        }
    }
    for s in (1..=count).rev() {
        let from = s.saturating_sub(room);
        let (before, own) = rows.split_at_mut(s * width);
        let own = &own[from..s];
        let leaves = own.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        for row in before.chunks_exact_mut(width) {
            let share = row[s] / leaves;
            row[s] = share;
            if share > 0.0 {
                row[from..s].iter_mut().zip(own).for_each(|(to, by)| *to += share * by);
            }
        }
    }
    let mut law = vec![0.0; width];
    law[0] = 1.0;
    for s in 1..=count {
        law[s] = (0..s).map(|from| law[from] * rows[from * width + s]).sum();
    }
    let sum: f64 = law.iter().sum();
    law.iter_mut().for_each(|share| *share /= sum);
    law
}

fn cumulate(law: &mut [f64]) {
    let mut sum = 0.0;
    for share in law {
        sum += *share;
        *share = sum;
    }
}
