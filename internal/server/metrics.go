package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

// newOperations returns the histogram of what is done with sandboxes: some of it takes
// milliseconds, some minutes.
func newOperations() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "bouvet", Name: "operation_seconds", Help: "How long operations with sandboxes took.",
		Buckets: prometheus.ExponentialBuckets(0.005, 2, 16),
	}, []string{"operation", "outcome"})
}

// observe is daemon.Options.Observe.
func (s *server) observe(operation string, took time.Duration, err error) {
	outcome := "ok"
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, daemon.ErrNotFound):
		outcome = "given up"
	case err != nil:
		outcome = "failed"
	}
	s.operations.WithLabelValues(operation, outcome).Observe(took.Seconds())
}

// newMetrics returns the handler of Prometheus' metrics.
func (s *server) newMetrics() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), s.operations)
	gauge := func(name, help string, of func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "bouvet", Name: name, Help: help}, of))
	}
	for _, g := range []struct {
		name, help string
		of         func(c daemon.Counts) int
	}{
		{"sandboxes_running", "Sandboxes that have a machine.", func(c daemon.Counts) int { return c.Running }},
		{"sandboxes_paused", "Sandboxes that are paused.", func(c daemon.Counts) int { return c.Paused }},
		{"sandboxes_creating", "Sandboxes that are being created.", func(c daemon.Counts) int { return c.Creating }},
		{"sandboxes_memory_mebibytes", "Memory that machines were given.", func(c daemon.Counts) int { return c.MemoryMiB }},
		{"sandboxes_vcpus", "Virtual CPUs that machines were given.", func(c daemon.Counts) int { return c.VCPUs }},
		{"snapshots", "Snapshots, those of paused sandboxes included.", func(c daemon.Counts) int { return c.Snapshots }},
	} {
		gauge(g.name, g.help, func() float64 { return float64(g.of(s.service.Counts())) })
	}
	gauge("connections", "Open connections of all listeners.", func() float64 {
		n := 0
		for _, c := range s.crowds {
			n += c.count()
		}
		return float64(n)
	})
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// metrics answers the administrator.
func (s *server) metrics(h http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.admin(w, r) {
			h.ServeHTTP(w, r)
		}
	}
}
