// Recorded steps of all ranks in one place, and as a trace that https://ui.perfetto.dev and
// chrome://tracing open: the Trace Event Format, JSON objects in microseconds.
#pragma once

#include <string>
#include <vector>

#include "sharding/context/context.h"
#include "sharding/profiler/step_recorder.h"

namespace tessera {

// Collective. Rank 0 gets every rank's record, in rank order; the others get an empty list.
std::vector<StepRecord> gather_records(const Context& context, const StepRecord& mine);

// The text of a trace: the beginning, a line for each event, which begins with a comma, the end.
std::string trace_begin();
// The events that name ranks as processes and lanes as their threads.
std::string trace_names(int ranks);
// One step of all ranks; `units` are StepRecorder::units().
std::string trace_events(const std::vector<StepRecord>& ranks,
                         const std::vector<std::string>& units);
std::string trace_end();

// Collective. Writes the recorder's newest step, of all ranks, as a file. The functions above serve
// more steps or other formats.
void write_trace(const Context& context, StepRecorder& recorder, const std::string& file);

}  // namespace tessera
