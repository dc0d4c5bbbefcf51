package timing

import "testing"

func TestMomentsAreWholeMillisecondsFromBeforeTheSend(t *testing.T) {
	for _, v := range [][6]int64{
		{1000, 15000, 6000, 13000, 15250, 16000}, {0, 1, 0, 0, 0, 1}, {7, 2, 7, 8, 8, 9},
		{100, 999, 433, 899, 1049, 1099}, {0, 1001, 333, 800, 950, 1001},
		{5, 86_400_001, 28_800_005, 69_120_005, 82_080_005, 86_400_005},
	} {
		w := New(Moment(v[0]), v[1])
		got := [6]int64{v[0], v[1], int64(w.RenewAt()), int64(w.Deadline()), int64(w.KillBy()),
			int64(w.ExpiresAt())}
		if got != v {
			t.Errorf("%v, not %v", got, v)
		}
		if w.IsLive(w.Deadline()) || w.WornAt() > w.Deadline() || w.RenewalTimeout(w.Deadline()) == 0 {
			t.Errorf("%v", v)
		}
	}
}

func TestPausesDoubleAndHaveJitter(t *testing.T) {
	for _, v := range [][3]uint64{{1, 0, 25}, {1, 25, 50}, {1, 26, 25}, {2, 50, 100}, {5, 0, 400},
		{6, 0, 500}, {6, 500, 1000}, {60, 501, 500}} {
		if ms := Pause(int(v[0]), v[1]).Milliseconds(); ms != int64(v[2]) {
			t.Errorf("%v: %d", v, ms)
		}
	}
}
