package server

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

// newMetrics returns the handler of Prometheus' metrics.
func (s *server) newMetrics() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
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
