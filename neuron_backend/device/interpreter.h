// The few functions of CPython's stable ABI that a warm call needs to run a program, which only Python can reach.
//
// They are declared here, not included: so that one library serves every CPython, and building needs no headers of it.
// The process that loads the library is a Python, which has them.
#pragma once

#include <c10/util/python_stub.h>

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

extern "C" {
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
int Py_IsInitialized();
int PyGILState_Ensure();
void PyGILState_Release(int);
int PyGILState_Check();
void PyErr_Clear();
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
PyObject* PyList_New(std::ptrdiff_t);
int PyList_SetItem(PyObject*, std::ptrdiff_t, PyObject*);
PyObject* PySequence_GetItem(PyObject*, std::ptrdiff_t);
std::ptrdiff_t PySequence_Size(PyObject*);
unsigned long long PyLong_AsUnsignedLongLong(PyObject*);
PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
void* PyCapsule_GetPointer(PyObject*, const char*);
int PyCapsule_IsValid(PyObject*, const char*);
extern PyObject _Py_NoneStruct;
}

namespace neuron {

// Holds the interpreter's lock.
class Interpreter {
 public:
  Interpreter() : state_(PyGILState_Ensure()) {}
  ~Interpreter() {
    PyGILState_Release(state_);
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

 private:
  int state_;
};

// References that threads without the interpreter's lock gave up: whoever calls a program next lets them go.
struct Abandoned {
  std::mutex mutex;
  std::vector<PyObject*> objects;

  static Abandoned& all() {
    static auto* one = new Abandoned();
    return *one;
  }
};

// Gives up a reference, from any thread: memory is freed wherever its last tensor goes.
inline void abandon(PyObject* object) {
  if (object == nullptr || Py_IsInitialized() == 0) {
    return;
  }
  if (PyGILState_Check() != 0) {
    Py_DecRef(object);
    return;
  }
  auto& abandoned = Abandoned::all();
  const std::lock_guard<std::mutex> lock(abandoned.mutex);
  abandoned.objects.push_back(object);
}

// A reference to a Python object. To be made and copied under the interpreter's lock; it may go anywhere.
class Object {
 public:
  Object() = default;
  // Takes over a new reference, such as calls return; null if the call failed.
  explicit Object(PyObject* owned) : object_(owned) {}
  static Object borrowed(PyObject* object) {
    Py_IncRef(object);
    return Object(object);
  }
  Object(const Object& other) : object_(other.object_) {
    if (object_ != nullptr) {
      Py_IncRef(object_);
    }
  }
  Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Object& operator=(Object other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Object() {
    abandon(object_);
  }

  explicit operator bool() const {
    return object_ != nullptr;
  }
  PyObject* get() const {
    return object_;
  }
  PyObject* release() {
    return std::exchange(object_, nullptr);
  }

 private:
  PyObject* object_ = nullptr;
};

// To be called under the interpreter's lock.
inline void drop_abandoned() {
  auto& abandoned = Abandoned::all();
  std::vector<PyObject*> objects;
  {
    const std::lock_guard<std::mutex> lock(abandoned.mutex);
    if (abandoned.objects.empty()) {
      return;
    }
    objects.swap(abandoned.objects);
  }
  for (auto* object : objects) {
    Py_DecRef(object);
  }
}

}  // namespace neuron
