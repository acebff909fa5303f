//! A channel's visible state: exceptions, watermarks, the status word, the mirror.

use std::sync::atomic::Ordering;

use nicforge_hwi::{
    tree::vector,
    tree_dcr::{error_word, pix, prx, status, vcfg},
};

use super::{Channel, QUADS, Shown};

impl Channel {
    /// Sets receive exceptions.
    pub(crate) fn receive_error(&mut self, bits: u32) {
        if bits & !self.prx != 0 {
            self.prx |= bits;
            self.events |= 1 << vector::ERROR;
        }
    }

    /// Sets injection exceptions.
    pub(crate) fn inject_error(&mut self, bits: u32) {
        if bits & !self.pix != 0 {
            self.pix |= bits;
            self.events |= 1 << vector::ERROR;
        }
    }

    /// Returns receive and injection exceptions, with the watermark bits as of now.
    pub(crate) fn exceptions(&mut self) -> (u32, u32) {
        let send = self.send_count();
        self.exceptions_with(send)
    }

    /// Returns the exceptions with `send` packets in the send FIFO.
    fn exceptions_with(&self, send: u32) -> (u32, u32) {
        let above = self.recv_count() > ((self.vcfg >> vcfg::RWM_SHIFT) & 7) * self.recv_depth / 8;
        let below = send <= ((self.vcfg >> vcfg::IWM_SHIFT) & 7) * self.send_depth / 8;

        let (above_bit, below_bit) =
            if self.number == 0 { (prx::WM0, pix::WM0) } else { (prx::WM1, pix::WM1) };
        (self.prx | if above { above_bit } else { 0 }, self.pix | if below { below_bit } else { 0 })
    }

    /// Returns the port's status word. It does not count quads and headers that the port has
    /// popped.
    pub(crate) fn status(&mut self) -> u32 {
        let send = self.send_count();
        self.status_with(send)
    }

    /// Returns the number of packets in the send and in the receive FIFO, as last seen.
    pub(crate) fn fill(&self) -> (u32, u32) {
        (self.send_seen + self.side_packets, self.recv_count())
    }

    /// Returns the status word with `send` packets in the send FIFO.
    fn status_with(&self, send: u32) -> u32 {
        let (staged_quads, staged_headers) = self.staged;

        let popped = self.popped();
        let quads = QUADS * self.recv_tail.wrapping_sub(popped.payload) - popped.quad;
        let headers = self.recv_tail.wrapping_sub(popped.header);

        status::word(QUADS * send + staged_quads, send + staged_headers, quads, self.irq_count > 0, headers)
    }

    /// Brings the mirror up to date. `enabled` has the receive and injection exceptions whose
    /// watermarks raise an interrupt.
    #[inline]
    pub(crate) fn publish(&mut self, enabled: (u32, u32)) {
        if self.windows.is_some() {
            self.publish_open(enabled);
        }
    }

    /// As [`Channel::publish`], for an open channel.
    fn publish_open(&mut self, enabled: (u32, u32)) {
        let send = self.send_count();
        let status = self.status_with(send);
        let (prx_bits, pix_bits) = self.exceptions_with(send);
        let now = Shown {
            send_head: self.send_head,
            recv_tail: self.recv_tail,
            irq: self.irq_count,
            status,
            error: error_word(prx_bits, pix_bits),
        };

        let watermarks = (
            prx_bits & enabled.0 & (prx::WM0 | prx::WM1) != 0,
            pix_bits & enabled.1 & (pix::WM0 | pix::WM1) != 0,
        );
        if (watermarks.0 && !self.watermarks.0) || (watermarks.1 && !self.watermarks.1) {
            self.events |= 1 << vector::WATERMARK;
        }
        self.watermarks = watermarks;

        let Some(windows) = &self.windows else { return };
        let (at, shown) = (&windows.shown, &mut self.shown);

        for (word, now, shown) in [
            (&at.send_head, now.send_head, &mut shown.send_head),
            (&at.recv_tail, now.recv_tail, &mut shown.recv_tail),
            (&at.irq, now.irq, &mut shown.irq),
            (&at.status, now.status, &mut shown.status),
            (&at.error, now.error, &mut shown.error),
        ] {
            if now != *shown {
                *shown = now;
                word.store(now, Ordering::Release);
            }
        }
    }

    /// Returns the vectors whose condition holds in this channel.
    pub(crate) fn conditions(&mut self, enabled: (u32, u32)) -> u32 {
        let (prx_bits, pix_bits) = self.exceptions();
        let (prx_bits, pix_bits) = (prx_bits & enabled.0, pix_bits & enabled.1);

        let (receive_marks, inject_marks) = (prx::WM0 | prx::WM1, pix::WM0 | pix::WM1);
        let watermark = prx_bits & receive_marks != 0 || pix_bits & inject_marks != 0;
        let error = prx_bits & !receive_marks != 0 || pix_bits & !(inject_marks | pix::ENABLE) != 0;

        (u32::from(self.irq_count > 0) << vector::RECV_IRQ)
            | (u32::from(watermark) << vector::WATERMARK)
            | (u32::from(error) << vector::ERROR)
    }
}
