// The commands that need no training. Every training program has them, so that it can use its own networks:
//
//     build/own_network predict runs/NAME ~/photos
//     build/own_network export runs/NAME net.onnx
//
// The programs predict, export_onnx and inspect are these commands, for the networks of models/nets.
#pragma once

#include "par/group.h"

#include <string>
#include <vector>

namespace rg {

struct Program;

/// Runs `NAME MODEL [FILE|DIR...]`: predicts with a model. By default, prints a line per image, separated by tabs: its
/// name, then class and score for each of the --top best classes, then the targets, such as an angle. If there are
/// several images, and the true class or targets of some are known, a summary of the accuracy or the errors follows.
/// Returns the exit code. Throws Error for wrong arguments, files or models, and on several ranks.
/// Without a FILE, tests the network of a run on the images that the run was tested on, and prints the run's metrics;
/// `programs` are those whose runs it knows.
int predict_command(par::Group& group, const std::string& name, const std::vector<std::string>& args,
                    const std::vector<const Program*>& programs);

/// Runs `NAME MODEL OUT`: writes a network as an ONNX file; see onnx.h. Returns the exit code.
int export_command(par::Group& group, const std::string& name, const std::vector<std::string>& args);

/// Runs `NAME FILE...`: describes the contents of files: kind, sizes, and for each tensor its type, range, mean and
/// number of values that are not finite. It recognises a file by its contents, but CIFAR records by the ending .bin.
/// For a folder, s3: or pipe: it describes the images that --data would load, with the number of images of each class,
/// and holds out no test set. Returns the exit code.
int inspect_command(par::Group& group, const std::string& name, const std::vector<std::string>& args);

} // namespace rg
